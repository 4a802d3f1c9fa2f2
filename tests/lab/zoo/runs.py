"""Traits of how the unit is run: users, cages, types, starts, stops; and of what runs and is not written."""

from __future__ import annotations

from tests.lab.zoo.draft import UNITS, Draft, File, checkout

# Users, rooms, cages


def other_user(draft: Draft) -> None:
    draft.lines += ["User=sgl", "Group=sgl"]


def dynamic_user(draft: Draft) -> None:
    draft.lines += ["DynamicUser=yes", "StateDirectory=sgl"]


def sliced(draft: Draft) -> None:
    draft.lines += ["Slice=gpu-serving.slice", "CPUWeight=500", "OOMScoreAdjust=-500"]


def hardened(draft: Draft) -> None:
    draft.lines += [
        "PrivateTmp=yes",
        "ProtectSystem=full",
        "ProtectHome=read-only",
        "NoNewPrivileges=yes",
        "UMask=0027",
    ]


def working_folder(draft: Draft) -> None:
    draft.files.append(File("/srv/serving"))
    draft.lines += ["WorkingDirectory=/srv/serving"]


def checkout_folder(draft: Draft) -> None:
    """`python -m` puts the folder first: the checkout's code serves. Case 32."""
    draft.files += checkout("/srv/checkout")
    draft.lines += ["WorkingDirectory=/srv/checkout"]
    draft.refused.append("/srv/checkout")


def jail(draft: Draft) -> None:
    draft.files.append(File("/srv/jail"))
    places = "/usr /bin /lib /lib64 /etc /opt /models"
    draft.lines += ["RootDirectory=/srv/jail", "MountAPIVFS=yes", f"BindReadOnlyPaths={places}"]
    for place in places.split():
        draft.files.append(File(f"/srv/jail{place}"))
    draft.refused.append("RootDirectory|another root|root folder|/srv/jail")


def bound_code(draft: Draft) -> None:
    """The service sees another sglang than the host does."""
    draft.files += checkout("/srv/patched")
    draft.lines += [f"BindPaths=/srv/patched/sglang:{draft.site}/sglang"]
    draft.refused.append("BindPaths|/srv/patched|mount|sees")


def log_file(draft: Draft) -> None:
    draft.lines += ["StandardOutput=append:/var/log/sglang.log", "StandardError=inherit"]


# Types, starts and stops


def notify(draft: Draft) -> None:
    draft.lines += ["Type=notify", "NotifyAccess=all"]


def exec_type(draft: Draft) -> None:
    draft.lines += ["Type=exec"]


def forking(draft: Draft) -> None:
    program, rest = draft.command.split(" ", 1)
    ours = f"--start --background --make-pidfile --pidfile /run/sgl.pid --exec {program} -- {rest}"
    draft.lines += ["Type=forking", "PIDFile=/run/sgl.pid", f"ExecStart=/usr/sbin/start-stop-daemon {ours}"]
    draft.refused.append("start-stop-daemon|forking")


def oneshot(draft: Draft) -> None:
    """A script that leaves the server behind."""
    text = f"#!/bin/sh\n{draft.command} > /var/log/sgl.log 2>&1 &\n"
    draft.file("/opt/sglang/start.sh", text, 0o755)
    draft.lines += ["Type=oneshot", "RemainAfterExit=yes", "ExecStart=/opt/sglang/start.sh", "Restart=no"]
    draft.refused.append("shell script|oneshot|main process")


def chatty_start(draft: Draft) -> None:
    """Progress that only the journal shows, for longer than `stalled_after`: case 27."""
    draft.lines += [
        "ExecStartPre=/bin/sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do echo loading $i; sleep 0.5; done'"
    ]
    draft.service |= {"start": {"stalled_after": "3s", "limit": "60s"}}
    draft.slow = 8.0


def start_hooks(draft: Draft) -> None:
    draft.lines += [
        "ExecStartPre=-/bin/false",
        "ExecStartPre=/bin/mkdir -p /run/sgl",
        "ExecStartPost=/bin/sh -c 'echo up > /run/sgl/up'",
        "ExecStopPost=/bin/rm -f /run/sgl/up",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "RuntimeDirectory=sgl",
    ]


def own_stop(draft: Draft) -> None:
    draft.lines += ["ExecStop=/bin/kill -TERM $MAINPID", "KillMode=mixed", "TimeoutStopSec=15"]


def deaf_within(draft: Draft) -> None:
    """Deaf to SIGTERM; systemd kills it before our limit."""
    draft.args += ["""--fake '{"ignore_term": true}'"""]
    draft.lines += ["TimeoutStopSec=2"]
    draft.slow = 3.0


def deaf_beyond(draft: Draft) -> None:
    """systemd waits longer than our limit: case 33."""
    draft.args += ["""--fake '{"ignore_term": true}'"""]
    draft.lines += ["TimeoutStopSec=9"]
    draft.service |= {"stop": {"drain": "1s", "limit": "3s"}}
    draft.slow = 10.0
    draft.put_back = r"lets it take its time \(9s\): a longer `stop: \{limit\}`"


def slow_stop(draft: Draft) -> None:
    draft.args += ["""--fake '{"linger_s": 1, "exit_s": 1.5}'"""]
    draft.slow = 3.0


def eager(draft: Draft) -> None:
    draft.lines += ["Restart=always", "RestartSec=100ms"]
    draft.unit_lines += ["StartLimitBurst=4", "StartLimitIntervalSec=1h"]


def alarm(draft: Draft) -> None:
    """OnFailure= writes a file: neither a stop nor an undo of ours is a failure of the unit."""
    draft.unit_lines += ["OnFailure=alarm.service"]
    draft.other_unit("alarm.service", "[Service]\nType=oneshot\nExecStart=/bin/touch /srv/alarm\n", "")


# What runs is not what is written


def unread(draft: Draft) -> None:
    draft.live.append(f"echo '# edited' >> {UNITS}/sglang.service; touch -d '+1 hour' {UNITS}/sglang.service")
    draft.refused.append("daemon-reload|changed on disk")


def read_not_restarted(draft: Draft) -> None:
    """The unit has new flags since it was started: what a rollback would bring back never ran."""
    new = draft.command.replace("DFLASH", "EAGLE")
    draft.live.append(
        f"mkdir -p {UNITS}/sglang.service.d; printf '[Service]\\nExecStart=\\nExecStart={new}\\n'"
        f" > {UNITS}/sglang.service.d/new.conf; systemctl daemon-reload"
    )
    draft.refused.append("running process|runs|EAGLE")


def env_file_edited(draft: Draft) -> None:
    draft.lines += ["EnvironmentFile=/etc/sgl/a.env"]
    draft.file("/etc/sgl/a.env", "A=1\n")
    draft.live.append("echo A=3 > /etc/sgl/a.env")
    draft.refused.append(r"\bA\b")


def gone_from_disk(draft: Draft) -> None:
    draft.live.append(f"rm {UNITS}/sglang.service")
    draft.refused.append("daemon-reload|changed on disk|not-found|no unit|gone")


def stopped_by_hand(draft: Draft) -> None:
    """The port is held by a server that somebody started beside the unit."""
    draft.logins.append(
        f"systemctl stop sglang; setsid nohup {draft.command} > /root/sgl.log 2>&1 < /dev/null & sleep 0.1"
    )
    draft.refused.append("port 30000|held|listen|use this venv")
