"""Random units on a real systemd: what we derive of one before its start, beside what /proc says after it.

Runs inside a lab host: `python3 random_units.py ONHOST_PARENT COUNT SEED`. Prints one line of JSON:
{"same", "refused", "not_started", "wrong": [what, ...]}.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

UNITS, FILES = Path("/run/systemd/system"), Path("/run/random-units")
NAMES = [
    "A",
    "B",
    "C1",
    "_D",
    "HOME",
    "PATH",
    "USER",
    "LANG",
    "SHELL",
    "MGR",
    "MGR2",
    "NONE",
    "A-b",
    "LOGNAME",
]
# What its start makes; named here again, so that a name too many in the product shows.
MADE = {
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
}
CANNOT_ENTER = "200"  # systemd's own exit status: the user may not enter the working folder
PAUSE = '/usr/bin/python3 -S -c "import signal; signal.pause()"'


class Maker:
    """Units as people could write them on a bad day."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)

    def piece(self, specifiers: list[str]) -> str:
        name = self.r.choice(NAMES)
        return self.r.choice(
            self.r.choice(
                [
                    [
                        "x",
                        "val",
                        "\u00e9",
                        "=",
                        "-",
                        ":",
                        "/",
                        "*",
                        "~",
                        "#",
                        ";",
                        "!",
                        "(",
                        "&",
                        "|",
                        "\ufeff",
                    ],
                    ["$", "$$", "$$$", "${", "}", "$}", "${}", f"$({name})", f"${{ {name}}}", "q=v"],
                    [
                        f"${name}",
                        f"${{{name}}}",
                        f"${{{name}:-d}}",
                        f"$${{{name}}}",
                        f"${name}=q",
                        f"${{{name}",
                    ],
                    [
                        "'",
                        '"',
                        "\\",
                        "\\\\",
                        "\\'",
                        '\\"',
                        "\\n",
                        "\\t",
                        "\\s",
                        "\\x41",
                        " ",
                        "\t",
                        "'a b'",
                        '""',
                    ],
                    specifiers,
                ]
            )
        )

    def text(self, most: int, specifiers: list[str]) -> str:
        return "".join(self.piece(specifiers) for _ in range(self.r.randint(0, most)))

    def word(self) -> str:
        text = self.text(4, ["%%", "%n", "%i", "%h", "%t", "%H", "%u", "%%n"])
        how = self.r.randint(0, 4)
        if how == 0:
            return '"' + text.replace('\\"', "").replace('"', "'").rstrip("\\") + '"'
        if how == 1:
            return "'" + text.replace("'", "").rstrip("\\") + "'"
        if how == 2:
            return self.r.choice(["$", "${"]) + self.r.choice(NAMES) + self.r.choice(["", "}", "}"])
        return text.translate(str.maketrans("", "", "'\"\\")) or "w"

    def environment_file(self, path: Path) -> None:
        lines = []
        for _ in range(self.r.randint(1, 6)):
            lead = self.r.choice(["", "", "", " ", "# ", "; ", "export ", "\ufeff", "# c \\\n"])
            equals = self.r.choice(["=", "=", "=", " = ", "= ", ""])
            value = self.text(5, ["%", "%n", "\n", "\\\n", "\r"])
            lines.append(lead + self.r.choice(NAMES) + equals + value)
        data = self.r.choice(["\n", "\n", "\r\n"]).join(lines) + self.r.choice(["\n", "", "\n\n"])
        path.write_bytes(data.encode() + (b"" if self.r.random() < 0.98 else b"Z=\xff\n"))

    def unit(self, number: int) -> dict[str, bytes]:
        """Path below /run/systemd/system -> text."""
        r, lines = self.r, ["[Service]", "Type=exec"]
        for n in range(r.randint(0, 3)):
            path = FILES / f"{number}.{n}.env"
            self.environment_file(path)
            there = r.random() < 0.93
            lines.append(f"EnvironmentFile={r.choice(['', '-', '-'])}{path}{'' if there else '.missing'}")
        if r.random() < 0.2:
            lines.append(f"EnvironmentFile={r.choice(['', '-'])}{FILES}/{number}.*")
        for _ in range(r.randint(0, 4)):
            value = self.text(3, ["%%", "%n", "%h"]).replace('"', "").rstrip("\\")
            form = r.choice(['"{}={}"', "'{}={}'", "{}={}"])
            lines.append("Environment=" + form.format(r.choice(NAMES), value))
        for key in ("PassEnvironment", "UnsetEnvironment"):
            if r.random() < 0.3:
                lines.append(f"{key}={' '.join(r.choices(NAMES, k=2))}")
        if r.random() < 0.4:
            lines.append("User=" + r.choice(["root", "nobody", "sgl", "daemon", "0"]))
        if r.random() < 0.3:
            lines.append("WorkingDirectory=" + r.choice(["/usr", "-/nowhere", "/var/run", "~"]))
        if r.random() < 0.1:
            lines.append("ExecSearchPath=/opt:/usr/bin")
        words = [self.word() for _ in range(r.randint(0, 6))]
        glue = r.choice([" ", " ", " \\\n  ", " \\\n# a comment\n  "])
        prefix = r.choice(["", "", "", "-", ":", "+", "!", "-:"])
        start = f"ExecStart={prefix}{PAUSE}{glue}{glue.join(words)}"
        name = f"xr{number}.service"
        if r.random() < 0.3:  # a drop-in has the command; some editors leave a mark at its beginning
            mark = r.choice(["", "\ufeff"])
            drop_in = f"{mark}[Service]\nExecStart=\n{start}\n"
            lines += ["ExecStart=/bin/false", "# K\xf6ln"]
            return {
                name: "\n".join(lines).encode("latin-1", "replace"),
                f"{name}.d/10.conf": drop_in.encode(),
            }
        return {name: ("\n".join([*lines, start]) + "\n").encode()}


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False).stdout


def seen(pid: int) -> tuple[str, list[str], dict[str, str], str]:
    """program, argv, environment, folder of a process, as the kernel has them."""

    at = Path(f"/proc/{pid}")

    def words(name: str) -> list[str]:
        return at.joinpath(name).read_bytes().decode(errors="surrogateescape").split("\0")[:-1]

    env = dict(word.split("=", 1) for word in words("environ"))
    real = {name: value for name, value in env.items() if name not in MADE}
    return str(at.joinpath("exe").readlink()), words("cmdline"), real, str(at.joinpath("cwd").readlink())


def main() -> None:
    parent, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.path.insert(0, parent)
    from onhost.service.base import ServiceError  # type: ignore[import-not-found]
    from onhost.service.systemd.control import SystemdControl  # type: ignore[import-not-found]
    from onhost.wire.protocol import Service  # type: ignore[import-not-found]

    maker = Maker(seed)
    FILES.mkdir(exist_ok=True)
    systemctl("set-environment", "MGR=from manager", 'MGR2="q r" s\\ t', "A=manager's")
    told: dict[str, object] = {"same": 0, "refused": 0, "not_started": 0, "wrong": []}
    wrong: list[str] = []
    for first in range(0, count, 20):
        batch = {n: maker.unit(n) for n in range(first, min(count, first + 20))}
        for files in batch.values():
            for name, data in files.items():
                (UNITS / name).parent.mkdir(exist_ok=True)
                (UNITS / name).write_bytes(data)
        systemctl("daemon-reload")
        derived: dict[int, object] = {}
        controls = {}
        for n in batch:
            service = Service(name="x", kind="systemd", endpoint="http://127.0.0.1:1", unit=f"xr{n}.service")
            controls[n] = control = SystemdControl(service, Path("/run/random-units/state"), {})
            state = systemctl("show", "-p", "LoadState", "--value", f"xr{n}.service").strip()
            if state != "loaded":
                told["refused"] = int(str(told["refused"])) + 1
                continue
            try:
                derived[n] = control._loaded()
            except ServiceError as error:
                derived[n] = error
        systemctl("start", *(f"xr{n}.service" for n in derived))
        for n, now in derived.items():
            pid = int(systemctl("show", "-p", "MainPID", "--value", f"xr{n}.service"))
            deadline = time.monotonic() + 60
            while (
                pid and Path(f"/proc/{pid}/exe").readlink().name == "systemd" and time.monotonic() < deadline
            ):
                os.sched_yield()
            if not pid or isinstance(now, ServiceError):
                status = systemctl("show", "-p", "ExecMainStatus", "--value", f"xr{n}.service").strip()
                if pid or not (isinstance(now, ServiceError) or status == CANNOT_ENTER):
                    wrong.append(f"xr{n}: derived {now}, and it runs: {bool(pid)}\n{batch[n]}")
                else:
                    told["not_started"] = int(str(told["not_started"])) + 1
                continue
            program, argv, env, folder = seen(pid)
            mine = (now.program, now.argv, now.environment, now.folder)  # type: ignore[attr-defined]
            facts = controls[n].describe()
            if mine != (program, argv, env, folder) or facts.differs:
                wrong.append(
                    f"xr{n}: derived {mine}\nruns {(program, argv, env, folder)}\n{facts.differs}\n{batch[n]}"
                )
            else:
                told["same"] = int(str(told["same"])) + 1
        names = [f"xr{n}.service" for n in batch]
        systemctl("kill", "-s", "KILL", *names)
        systemctl("stop", *names)
        systemctl("reset-failed")
        for files in batch.values():
            for name in files:
                (UNITS / name).unlink()
    told["wrong"] = wrong
    print(json.dumps(told))


if __name__ == "__main__":
    main()
