"""The lab, and its hosts: systemd as PID 1, sshd, a service; on, off, frozen, looked at from outside."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.lab import need, net, registry
from tests.lab.guest import Guest
from tests.lab.image import Image, make_template, personalize

HERE = Path(__file__).parent
PATIENCE = 120.0  # seconds for anything that takes less than one on an idle machine


class LabError(RuntimeError):
    """The lab itself failed; no verdict on what is tested in it."""


class Host(Guest):
    """One host. `root` is its root folder as this machine sees it, also while it is off."""

    def __init__(self, lab: Lab, number: int, name: str, image: Image, disk_mb: int) -> None:
        self.lab, self.number, self.image = lab, number, image
        self.folder = lab.folder / name
        group = need.cgroup_root()
        assert group is not None
        super().__init__(name, self.folder / "root", group / f"{lab.record.lab}-{name}")
        self.netns, self.address = lab.net.attach(number)
        self._make_root(disk_mb)
        key = personalize(self.root, name, image, uuid.uuid4().hex)
        with lab.known_hosts.open("a") as file:
            file.write(f"{self.address} {' '.join(key.split()[:2])}\n")
        lab.record.add("cgroup", self.cgroup)
        self._console = (self.folder / "console.log").open("ab")
        self._keeper = subprocess.Popen(
            [
                "unshare",
                "--mount",
                sys.executable,
                "-I",
                HERE / "keeper.py",
                self.root,
                self.cgroup,
                self.netns,
                name,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._console,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C is for the tests
        )
        self._said = b""
        self._await_word("ready")
        self.on = False

    def _make_root(self, disk_mb: int) -> None:
        self.root.mkdir(parents=True)
        if disk_mb:  # a small ext4 of its own, that can run full
            image = self.folder / "disk.img"
            with image.open("wb") as file:
                file.truncate(disk_mb * 1024 * 1024)
            net.run("mkfs.ext4", "-q", "-m", "0", image)
            self.lab.record.add("mount", self.root)
            net.run("mount", "-o", "loop", image, self.root)
        net.run("cp", "--archive", f"{self.lab.template}/.", self.root)

    # Power

    def boot(self, *, wait: bool = True) -> None:
        """Switch on. With `wait`, return when systemd has reached its target and sshd answers."""
        assert self._keeper.stdin is not None
        self.lab.net.cable(self.number, up=True)
        self._keeper.stdin.write(b"boot\n")
        self._await_word("on")
        self.on = True
        if wait:
            self.wait_ready()

    def power_cut(self) -> None:
        """All processes end at once, no peer is told; files stay as they are (page cache included)."""
        self.lab.net.cable(self.number, up=False)  # else the kernel would close their connections for them
        (self.cgroup / "cgroup.kill").write_text("1")
        self._await_word("off")
        wait_for(
            lambda: "populated 0" in (self.cgroup / "cgroup.events").read_text(), f"{self.name} to be off"
        )
        self.lab.net.forget_sockets(self.netns)
        self.on = False

    def reboot(self, *, wait: bool = True) -> None:
        """An orderly `systemctl reboot`, as an administrator or a kernel update does it."""
        before = self.boot_id()
        self.run("systemctl --no-block reboot")
        self.await_reboot(before, wait=wait)

    def await_reboot(self, boot_id: str, *, wait: bool = True) -> None:
        """Wait until a reboot that somebody else asked for is through."""
        self._await_word("rebooting")
        self._await_word("on")
        if wait:
            self.wait_ready()
            if self.boot_id() == boot_id:
                raise LabError(f"{self.name} has the boot_id of before its reboot")

    def freeze(self) -> None:
        """Stop every process where it is. The kernel still answers for open sockets."""
        self._set_frozen(True)

    def thaw(self) -> None:
        self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> None:
        (self.cgroup / "cgroup.freeze").write_text(str(int(frozen)))
        state = f"frozen {int(frozen)}"
        wait_for(lambda: state in (self.cgroup / "cgroup.events").read_text(), f"{self.name} to be {state}")

    def wait_ready(self) -> None:
        """Wait for systemd to have nothing queued and for sshd's banner; sends no command over SSH."""
        wait_for(self.booted, f"{self.name} to boot (see {self._console.name})")
        wait_for(self.answers, f"sshd of {self.name} to answer (see {self._console.name})")

    def answers(self, timeout: float = 5.0) -> bool:
        """Whether sshd sends its banner to the controller within `timeout`."""
        with contextlib.suppress(OSError), self.lab.inside():
            s = socket.create_connection((self.address, 22), timeout)
            with s:
                s.settimeout(timeout)
                return s.recv(64).startswith(b"SSH-")
        return False

    def _await_word(self, word: str) -> str:
        assert self._keeper.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while True:
            line, newline, rest = self._said.partition(b"\n")
            if newline:
                self._said = rest
                if line.decode().split()[0] == word:
                    return line.decode()
                continue
            ready, _, _ = select.select([self._keeper.stdout], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._keeper.stdout.fileno(), 4096) if ready else b""
            if not more:
                raise LabError(f"{self.name}: no {word!r} from its keeper (see {self._console.name})")
            self._said += more

    # SSH

    def ssh(
        self,
        command: str,
        *,
        check: bool = True,
        stdin: bytes = b"",
        timeout: float = PATIENCE,
        user: str = "root",
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command over OpenSSH, strict keys, from the controller's namespace."""
        argv = [*self.lab.ssh_command(user), self.address, command]
        done = subprocess.run(argv, check=False, capture_output=True, input=stdin, timeout=timeout)
        text = subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), done.stderr.decode())
        if check and text.returncode:
            raise LabError(
                f"ssh {self.name} {command!r}: status {text.returncode}: {text.stdout}{text.stderr}"
            )
        return text

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Put this thread into the host's network: 127.0.0.1 is the host's."""
        with net.inside(self.netns):
            yield

    def inventory(self, **fields: Any) -> dict[str, Any]:
        """This host's entry in a hosts.yaml; `fields` are added or replace."""
        entry: dict[str, Any] = {
            "address": self.address,
            "user": "root",
            "identity_file": str(self.lab.identity),
            "known_hosts": str(self.lab.known_hosts),
            "python": "/opt/sglang/venv/bin/python",
        }
        if self.image.service:
            entry["service"] = {
                "kind": "systemd",
                "unit": "sglang.service",
                "endpoint": "http://127.0.0.1:30000",
            }
        return entry | fields

    def end(self) -> None:
        """Switch off and forget. The folder goes with the lab."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        if self.cgroup.exists() and "frozen 1" in (self.cgroup / "cgroup.events").read_text():
            self.thaw()
        self._keeper.stdin.close()
        self._keeper.wait(PATIENCE)
        self._keeper.stdout.close()
        self._console.close()
        registry.end_cgroup(self.cgroup)


def wait_for(condition: Any, what: str, timeout: float = PATIENCE) -> None:
    """Poll until `condition()` holds; a deadline is an error that says what was awaited."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.02)


class Lab:
    """A network with a controller and hosts, in `folder` (which should not be on an overlayfs)."""

    def __init__(self, folder: Path | None = None) -> None:
        if reasons := need.missing():
            raise LabError("no lab can be made on this machine: " + "; ".join(reasons))
        registry.sweep()
        self.record = registry.Record()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.record.lab}-", dir=folder))
        self.folder.chmod(0o755)
        self.hosts: list[Host] = []
        self._numbers = iter(range(1, 200))
        try:
            self.record.add("folder", self.folder)
            self.net = net.Net(self.record)
            self.known_hosts = self.folder / "known_hosts"
            self.known_hosts.touch()
            self.identity = self.folder / "id"
            net.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.identity)
            self.template = self.folder / "template"
            make_template(self.template, self.identity.with_suffix(".pub").read_text())
        except BaseException:
            self.record.release()
            raise

    def host(self, image: Image | None = None, *, disk_mb: int = 0, boot: bool = True) -> Host:
        """One more host, booted. `disk_mb`: its root is an ext4 of this size, for disks that run full."""
        return self.add(1, image, disk_mb=disk_mb, boot=boot)[0]

    def add(
        self, count: int, image: Image | None = None, *, disk_mb: int = 0, boot: bool = True
    ) -> list[Host]:
        """`count` more hosts, booted side by side."""
        new = []
        for _ in range(count):
            number = next(self._numbers)
            new.append(Host(self, number, f"host{number}", image or Image(), disk_mb))
            self.hosts.append(new[-1])
        for host in new if boot else []:
            host.boot(wait=False)
        for host in new if boot else []:
            host.wait_ready()
        return new

    def remove(self, host: Host) -> None:
        """End a host before the lab ends; its folder is deleted."""
        host.end()
        self.hosts.remove(host)
        if host.root.is_mount():
            net.run("umount", "--lazy", host.root)
        shutil.rmtree(host.folder)

    def ssh_command(self, user: str = "root") -> list[str]:
        """`ssh` with strict keys, as words before the address."""
        options = {
            "IdentityFile": self.identity,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "60",
            "User": user,
        }
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return [*net.enter(self.net.controller), "ssh", "-F", "/dev/null", *flags]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Put this thread, and the threads and children it starts, into the controller's network."""
        with net.inside(self.net.controller):
            yield

    def close(self) -> None:
        """End everything. Also what a failing `end` of one host would leave."""
        try:
            for host in self.hosts:
                host.end()
        finally:
            self.hosts.clear()
            self.record.release()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
