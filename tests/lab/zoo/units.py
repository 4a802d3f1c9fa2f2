"""Traits of the unit: how people write the file that starts the server."""

from __future__ import annotations

from tests.lab.fake_venv import VENV
from tests.lab.zoo.draft import KEY, UNITS, Draft

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
    draft.args += ["--tag %H-%n-%N --home %h --state %S/sgl --run %t --user %u --machine %m"]


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
