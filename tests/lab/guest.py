"""A host seen from outside: its files, its processes, commands without SSH. Needs no network."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from tests.lab.image import MOOD, PORT


class Guest:
    """What can be seen and done without the network. `cgroup` holds all processes of the host."""

    def __init__(self, name: str, root: Path, cgroup: Path) -> None:
        self.name, self.root, self.cgroup = name, root, cgroup

    def path(self, path: str) -> Path:
        """A path on the host, as a path on this machine. Do not follow absolute symlinks."""
        return self.root / path.lstrip("/")

    @property
    def pid1(self) -> int:
        """systemd's pid as this machine counts; 0 while it is not up."""
        with suppress(OSError, IndexError):
            return int((self.cgroup / "payload/init.scope/cgroup.procs").read_text().split()[0])
        return 0

    def pids(self, under: str = "") -> Iterator[int]:
        """All processes in the cgroup `under` (a path in the host, or everything), as this machine counts."""
        for folder, _, _ in os.walk(self.cgroup / "payload" / under):
            with suppress(OSError):
                yield from map(int, Path(folder, "cgroup.procs").read_text().split())

    def run(
        self, command: str, *, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the host, not over SSH."""
        enter = [
            "nsenter",
            "--target",
            str(self.pid1),
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--cgroup",
        ]
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        done = subprocess.run(
            [*enter, "sh", "-c", command],
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            raise RuntimeError(
                f"{self.name}: {command!r}: status {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done

    def cpu_seconds(self) -> float:
        """CPU time that the host has used since it was switched on."""
        usage = dict(line.split() for line in (self.cgroup / "cpu.stat").read_text().splitlines())
        return int(usage["usage_usec"]) / 1e6

    def booted(self) -> bool:
        """Whether systemd has started all that the boot asks for; it is given some time for that."""
        pid = self.pid1
        if not pid or not Path(f"/proc/{pid}/root/run/systemd/private").exists():
            return False  # nobody would answer
        try:
            state = self.run("systemctl is-system-running --wait", check=False, timeout=20.0).stdout.strip()
        except subprocess.TimeoutExpired:
            return False
        return state in ("running", "degraded")

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def unit(self, name: str = "sglang.service") -> dict[str, str]:
        """ActiveState, SubState, MainPID, NRestarts and ExecStart of a unit."""
        wanted = "ActiveState,SubState,MainPID,NRestarts,ExecStart,DropInPaths"
        lines = self.run(f"systemctl show -p {wanted} {name}").stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def mood(self, **mood: Any) -> None:
        """Tell the fake server how to behave from now on; see fake_sglang.py."""
        self.path(MOOD).write_text(json.dumps(mood))

    def inside(self) -> AbstractContextManager[None]:
        """Put this thread into the host's network."""
        raise NotImplementedError

    def http(self, path: str, body: dict[str, Any] | None = None, timeout: float = 30.0) -> Any:
        """Ask the service on the host's loopback; JSON back. Raises OSError where it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with self.inside(), opener.open(request, timeout=timeout) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def generates(self) -> bool:
        """Whether the service answers a prompt with tokens."""
        try:
            body = {"text": "one two", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
            return bool(self.http("/generate", body)["text"])
        except (OSError, KeyError, ValueError):
            return False
