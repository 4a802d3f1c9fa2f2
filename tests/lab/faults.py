"""Faults, each a context manager: the fault is there when the block begins, and gone when it ends.

    with frozen(host): ...          # every process stopped; the kernel still answers
    with cut(host): ...             # the cable is out
    cut_sessions(host)              # every sshd that serves a session is killed (nothing to take back)

Not here: a skewed clock. The hosts share the kernel's, and a time namespace moves only the monotonic one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.lab.hosts import Host, wait_for

# Sessions


def cut_sessions(host: Host, *, whole: bool = False) -> list[int]:
    """Kill the sshd processes of all open sessions (`whole`: and all that runs in them); the pids killed."""
    killed = []
    for pid in host.pids("user.slice"):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if whole or name.startswith("sshd"):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


@contextlib.contextmanager
def sshd_stopped(host: Host) -> Iterator[None]:
    """sshd and its sessions are stopped; the rest of the host goes on."""
    pids = [pid for pid in host.pids() if _comm(pid).startswith("sshd")]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a session that ended just now
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


# Power


@contextlib.contextmanager
def frozen(host: Host) -> Iterator[None]:
    """Every process of the host stands still."""
    host.freeze()
    try:
        yield
    finally:
        host.thaw()


@contextlib.contextmanager
def power_cut(host: Host) -> Iterator[None]:
    """The host is off while the block runs, and booted after it."""
    host.power_cut()
    try:
        yield
    finally:
        host.boot()


# Network


@contextlib.contextmanager
def cut(host: Host) -> Iterator[None]:
    """The host's cable is out: packets get lost both ways, nobody is told."""
    net = host.lab.net
    net.cable(host.number, up=False)
    try:
        yield
    finally:
        net.cable(host.number, up=True)


@contextlib.contextmanager
def reset(host: Host) -> Iterator[None]:
    """Whoever sends to the host over TCP gets a reset, as from a firewall that lost its state."""
    with host.lab.net.rule("-d", host.address, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"):
        yield


@contextlib.contextmanager
def loss(host: Host, share: float) -> Iterator[None]:
    """This share (0 to 1) of the packets is lost, both ways. 1.0 is a firewall that drops."""
    words = ["-m", "statistic", "--mode", "random", "--probability", f"{share:.4f}", "-j", "DROP"]
    net = host.lab.net
    with net.rule("-d", host.address, *words), net.rule("-s", host.address, *words):
        yield


# Disk


@contextlib.contextmanager
def full_disk(host: Host, leave: int = 0, at: str = "/") -> Iterator[None]:
    """Fill the filesystem that holds `at` until `leave` bytes are free. The host needs a disk of its own."""
    ballast = host.path(at) / ".ballast"
    stat = os.statvfs(ballast.parent)
    if stat.f_blocks * stat.f_frsize > 1 << 30:
        raise ValueError(f"{host.name}: {at} is on this machine's own disk; make the host with disk_mb")
    size = stat.f_bavail * stat.f_frsize - leave
    try:
        if size > 0:
            _fill(ballast, size)
        yield
    finally:
        ballast.unlink(missing_ok=True)


def _fill(ballast: Path, size: int) -> None:
    with ballast.open("wb") as file:
        while size > 0:  # block maps take space too, so the last bytes are found by trying
            step = min(size, 1 << 20)
            try:
                os.posix_fallocate(file.fileno(), file.tell(), step)
                file.seek(step, os.SEEK_CUR)
                size -= step
            except OSError:
                size = step // 2 if step >= 4096 else 0


@contextlib.contextmanager
def small_disk(host: Host, path: str, size: str = "100k", inodes: int = 0) -> Iterator[None]:
    """A tmpfs of this size (and number of inodes) on `path`, with what was there; back to what was after."""
    options = f"size={size}" + (f",nr_inodes={inodes}" if inodes else "")
    there = shlex.quote(path)
    host.run(
        f"set -e; mkdir -p /run/lab-old {there}; "
        f"mount --bind {there} /run/lab-old; mount --make-private /run/lab-old; "
        f"mount -t tmpfs -o {options},mode=$(stat -c %a {there}) lab {there}; cp -a /run/lab-old/. {there}"
    )
    try:
        yield
    finally:
        host.run(f"umount --lazy {there}; umount --lazy /run/lab-old", check=False)


@contextlib.contextmanager
def read_only(host: Host, path: str = "/opt/sglang/venv") -> Iterator[None]:
    """`path` is remounted read-only. A reboot ends it early."""
    there = shlex.quote(path)
    host.run(f"mount --bind {there} {there} && mount -o remount,bind,ro {there}")
    try:
        yield
    finally:
        if host.on:
            host.run(f"umount --lazy {there}", check=False)


@contextlib.contextmanager
def immutable(host: Host, path: str) -> Iterator[None]:
    """`chattr +i`: not even root can change, rename or remove the file."""
    there = host.path(path)
    subprocess.run(["chattr", "+i", there], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", there], check=True)


# The controller


def kill_controller(process: subprocess.Popen[str], sig: signal.Signals = signal.SIGKILL) -> int:
    """Signal the controller and the programs it started (it leads a process group); its exit status."""
    os.killpg(process.pid, sig)
    wait_for(lambda: process.poll() is not None, f"the controller to end on {sig.name}")
    return process.returncode
