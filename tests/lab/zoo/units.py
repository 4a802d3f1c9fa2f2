"""Traits of the unit: how people write the file that starts the server."""

from __future__ import annotations

from tests.lab.fake_venv import VENV
from tests.lab.zoo.draft import KEY, UNITS, Draft, File, checkout

TOKEN = "hf_zooSecret7c1d9e"  # in environment files; must not be shown
BOM = b"\xef\xbb\xbf"
LAUNCHED = "sglang.launch_server"


# Names


def template(draft: Draft) -> None:
    draft.unit, draft.fragment = "llm@qwen.service", "llm@.service"
    draft.lines += ["EnvironmentFile=/etc/llm/%i.env"]
    draft.args += ["--served-model-name %i"]
    draft.port = "${PORT}"
    draft.file("/etc/llm/qwen.env", f"PORT=30000\nHF_TOKEN={TOKEN}\n", 0o600)
    draft.secrets.append(TOKEN)
    draft.dependents.add("llm@qwen.service")


def escaped_instance(draft: Draft) -> None:
    draft.unit, draft.fragment = r"llm@models-target\x2d7b.service", "llm@.service"
    draft.args += ['--served-model-name "%I" --tag %i --unit %n --prefix %p']
    draft.dependents.add(draft.unit)


def alias(draft: Draft) -> None:
    """hosts.yaml has the alias; the file has another name."""
    draft.unit, draft.fragment = "inference.service", "sglang.service"
    draft.install = "WantedBy=multi-user.target\nAlias=inference.service"
    draft.link(f"{UNITS}/inference.service", f"{UNITS}/sglang.service")
    draft.dependents.add("sglang.service")


def linked_unit(draft: Draft) -> None:
    """`systemctl link /opt/units/sglang.service`."""
    draft.folder = "/opt/units"
    draft.link(f"{UNITS}/sglang.service", "/opt/units/sglang.service")


def transient(draft: Draft) -> None:
    """`systemd-run --unit=sglang ...`: gone with its first stop."""
    draft.installed = False
    draft.live.append(f"systemd-run --quiet --unit=sglang.service {draft.command}")
    draft.refused.append(r"transient|systemd-run|/run/systemd/transient")


def volatile_unit(draft: Draft) -> None:
    """In /run: gone with the next boot."""
    draft.installed = False
    text = draft.text().decode()
    draft.live.append(
        f"cat > /run/systemd/system/sglang.service <<'EOF'\n{text}EOF\n"
        "systemctl daemon-reload; systemctl start sglang"
    )


# Drop-ins


def drop_ins(draft: Draft) -> None:
    draft.drop_in("10-env.conf", "[Service]\nEnvironment=NCCL_DEBUG=WARN GREETING=50%%\n")
    draft.drop_in("50-limits.conf", "# local\n[Service]\nLimitNOFILE=4096\nLimitCORE=0\nNice=3\n")
    draft.drop_in("80-mask.conf", "[Service]\nUnsetEnvironment=GREETING\n")
    draft.link(f"{UNITS}/{draft.fragment_name}.d/20-off.conf", "/dev/null")


def new_command(draft: Draft) -> None:
    """A drop-in has the whole command, the unit another."""
    draft.drop_in(
        "override.conf", f"[Service]\nExecStart=\nExecStart={draft.command} --context-length 4096\n"
    )


def type_drop_in(draft: Draft) -> None:
    draft.file(f"{UNITS}/service.d/10-all.conf", "[Service]\nEnvironment=EVERY=one\n")


def late_drop_in(draft: Draft) -> None:
    draft.drop_in("zzzzz-local.conf", f"[Service]\nExecStart=\nExecStart={draft.command} --late\n")
    draft.refused.append("sorts after|would win")


def bom_with_key(draft: Draft) -> None:
    """Some editors begin each file so; systemd reads it."""
    draft.key = KEY
    draft.secrets.append(KEY)
    text = f"[Service]\nExecStart=\nExecStart={draft.command} --api-key {KEY}\n"
    draft.drop_in("20-key.conf", BOM + text.encode())


def bom_in_unit(draft: Draft) -> None:
    draft.head = BOM


def latin_1(draft: Draft) -> None:
    draft.head = b"# Inferenzserver K\xf6ln, 2. Stock\n"


def crlf_drop_in(draft: Draft) -> None:
    draft.drop_in("30-win.conf", b"[Service]\r\nEnvironment=MADE_ON=windows\r\n")


# Words


def quotes(draft: Draft) -> None:
    draft.args += [
        r"""--served-model-name "Qwen 2.5 \"chat\"" --json '{"a": [1, "x y"], "b": ""}' """
        r"--tab a\tb --blank a\x20b --empty '' --price 5$$ --share 50%% --semicolon 'a;b'",
    ]


def specifiers(draft: Draft) -> None:
    draft.args += ["--tag %H-%n-%N --home %h --state %S/sgl --run %t --user %u --machine %m --boot %b"]


def variables(draft: Draft) -> None:
    draft.lines += ["Environment='EXTRA=--context-length 4096 --tag \"a b\"' NAME=qwen"]
    draft.args += ["$EXTRA --served-model-name ${NAME} --nothing $UNSET_ZOO --rest x${NAME}y"]


def flags_in_file(draft: Draft) -> None:
    draft.lines += ["EnvironmentFile=/etc/default/sglang"]
    draft.args += ["$SGLANG_ARGS"]
    draft.file("/etc/default/sglang", 'SGLANG_ARGS="--context-length 4096 --mem-fraction-static 0.85"\n')


def continued(draft: Draft) -> None:
    draft.args += [
        "\\\n  --context-length 4096 \\\n# a comment between\n  --log-level info \\\n ; another\n  --tp 1"
    ]


def our_flag_in_variable(draft: Draft) -> None:
    """Wins over what we set: case 30."""
    draft.lines += ["Environment='EXTRA=--speculative-algorithm DFLASH'"]
    draft.args += ["$EXTRA"]
    draft.refused.append("EXTRA|speculative-algorithm")


def our_flag_in_file(draft: Draft) -> None:
    draft.lines += ["EnvironmentFile=-/etc/default/sglang"]
    draft.args += ["$SGLANG_ARGS"]
    draft.file("/etc/default/sglang", "SGLANG_ARGS=--speculative-algorithm=DFLASH --context-length 4096\n")
    draft.refused.append("SGLANG_ARGS|speculative-algorithm")


def no_expansion(draft: Draft) -> None:
    draft.wrap = ":{}"
    draft.args += ["--price $5 --name ${HOME}"]


def minus(draft: Draft) -> None:
    draft.wrap = "-{}"


def argv0(draft: Draft) -> None:
    draft.lines.append(f"ExecStart=@{VENV}/bin/python {VENV}/bin/python3 {draft.command.split(' ', 1)[1]}")
    draft.refused.append(r"argv\[0\]|prefix @")


# Environment


def several_files(draft: Draft) -> None:
    draft.lines += [
        "Environment=A=unit B=unit C=unit",
        "EnvironmentFile=/etc/sgl/one.env",
        "EnvironmentFile=-/etc/sgl/not-there.env",
        "EnvironmentFile=/etc/sgl/conf.d/*.env",
    ]
    draft.file("/etc/sgl/one.env", f"# first\nB=one\nC='one two'\nHF_TOKEN={TOKEN}\n", 0o600)
    draft.file("/etc/sgl/conf.d/20-b.env", 'C="b c\\"d" \n')
    draft.file("/etc/sgl/conf.d/10-a.env", "C=a\nPORT=30000\nD=x y   z\n")
    draft.port = "${PORT}"
    draft.secrets.append(TOKEN)


def env_file_wins(draft: Draft) -> None:
    """A variable that launch.env sets is set by a file, too, and the file wins."""
    draft.lines += ["EnvironmentFile=/etc/sgl/*.env"]
    draft.file("/etc/sgl/nccl.env", "NCCL_DEBUG=WARN\n")
    draft.launch["env"] = {"NCCL_DEBUG": "INFO"}
    draft.refused.append("NCCL_DEBUG")


def launch_env(draft: Draft) -> None:
    draft.lines += ["Environment=NCCL_DEBUG=WARN"]
    draft.launch["env"] = {"NCCL_DEBUG": "INFO", "GREETING": 'a "b" 50% $HOME'}


def manager_environment(draft: Draft) -> None:
    draft.file(
        "/etc/systemd/system.conf.d/zoo.conf", "[Manager]\nDefaultEnvironment=PORT=30000 SITE=cologne\n"
    )
    draft.port = "${PORT}"
    draft.args += ["--tag ${SITE}"]


def set_environment(draft: Draft) -> None:
    """By hand, on the running manager; lost with the next boot."""
    draft.live.append("systemctl set-environment ZOO_PORT=30000; systemctl restart sglang")
    draft.lines += ["Environment=ZOO_PORT=30000"]
    draft.args += ["--tag ${ZOO_PORT}"]


def env_key(draft: Draft) -> None:
    draft.key = KEY
    draft.secrets.append(KEY)
    draft.lines += ["EnvironmentFile=/etc/sgl/key.env"]
    draft.file("/etc/sgl/key.env", f"SGLANG_API_KEY={KEY}\n", 0o600)
    draft.args += ["--api-key ${SGLANG_API_KEY}"]


def plain_key(draft: Draft) -> None:
    draft.key = KEY
    draft.secrets.append(KEY)
    draft.args += [f"--api-key {KEY}"]


# Wrappers


def script(draft: Draft) -> None:
    draft.file("/opt/sglang/run.sh", f'#!/bin/sh\ncd /opt/sglang\nexec {draft.command} "$@"\n', 0o755)
    draft.lines.append("ExecStart=/opt/sglang/run.sh")
    draft.refused.append("shell script|wrapper")


def bash_c(draft: Draft) -> None:
    draft.wrap = "/bin/bash -c 'exec {}'"
    draft.refused.append("shell")


def sourced(draft: Draft) -> None:
    draft.wrap = "/bin/bash -lc 'source " + VENV + "/bin/activate && {}'"
    draft.refused.append("shell")


def numactl_like(draft: Draft) -> None:
    draft.wrap = "/usr/bin/taskset -c 0 /usr/bin/nice -n 5 /usr/bin/ionice -c 2 -n 7 {}"


def env_prefix(draft: Draft) -> None:
    draft.wrap = "/usr/bin/env CUDA_DEVICE_ORDER=PCI_BUS_ID NCCL_DEBUG=WARN {}"


def setpriv_prefix(draft: Draft) -> None:
    draft.wrap = "/usr/bin/setpriv --no-new-privs {}"


def console_script(draft: Draft) -> None:
    text = f"#!{VENV}/bin/python\nimport runpy\n\nrunpy.run_module('{LAUNCHED}', run_name='__main__')\n"
    draft.file(f"{VENV}/bin/sglang-server", text, 0o755)
    draft.python, draft.module = f"{VENV}/bin/sglang-server", ""


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
    draft.refused.append("TimeoutStop|stop.{0,20}limit|shorter")


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
