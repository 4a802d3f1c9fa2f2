"""Find processes by what they are, and end them for certain.

A process is named by its id *and* its start time, so an id that the kernel has given to another process
since is never mistaken for the old one.  Linux only: everything is read from ``/proc``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, order=True)
class Process:
    """One process: its id and its start time, in clock ticks since boot (field 22 of ``/proc/PID/stat``)."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """True while it runs; a zombie, which holds neither ports nor memory, counts as ended."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.started and fields[0] not in "ZX"

    def command(self) -> str:
        """The command line, for messages; empty when the process is gone."""
        try:
            raw = (PROC / str(self.pid) / "cmdline").read_bytes()
        except OSError:
            return ""
        return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def find(pid: int) -> Process | None:
    """The process that has this id now, or None."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else Process(pid, int(fields[19]))


def with_environment(name: str, value: str) -> list[Process]:
    """Every process whose *initial* environment has ``name=value``; those we may not read are left out."""
    wanted = f"{name}={value}".encode()
    found = []
    for pid in _pids():
        try:
            environ = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environ.split(b"\0") and (process := find(pid)) is not None:
            found.append(process)
    return sorted(found)


def descendants(pid: int) -> list[Process]:
    """All living processes below ``pid``, without itself."""
    children: dict[int, list[int]] = {}
    for child in _pids():
        fields = _stat(child)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(child)
    below, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            queue.append(child)
            if (process := find(child)) is not None:
                below.append(process)
    return below


def session(pid: int) -> int:
    """The session id of a process; 0 when it is gone."""
    fields = _stat(pid)
    return int(fields[3]) if fields else 0


def ancestry(pid: int) -> set[int]:
    """``pid`` and the ids of all processes above it."""
    above: set[int] = set()
    while pid > 0 and pid not in above:
        above.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return above


def end(processes: Iterable[Process], *, grace: float = 10.0) -> list[Process]:
    """Ask the processes to end (SIGTERM), then insist (SIGKILL).

    Args:
        processes: those to end.
        grace: seconds between the two signals; as many again are allowed for the second to work.

    Returns:
        The processes that are still alive: empty unless the kernel holds one, or we may not signal it.
    """
    remaining = [p for p in processes if p.alive]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in remaining:
            _signal(process, number)
        deadline = time.monotonic() + grace
        remaining = [p for p in remaining if not wait_ended(p, max(0.0, deadline - time.monotonic()))]
        if not remaining:
            break
    return remaining


def wait_ended(process: Process, timeout: float) -> bool:
    """Wait up to ``timeout`` seconds for the process to end; True when it has."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return not process.alive
    try:
        # Opened first, checked second: had the id been reused in between, this is another process.
        if not process.alive:
            return True
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(timeout * 1000)
    finally:
        os.close(descriptor)
    return not process.alive


def listener(port: int) -> Process | None:
    """The process that listens on this TCP port (any address), where we may see it."""
    inodes = _listening_sockets(port)
    for pid in _pids() if inodes else ():
        with contextlib.suppress(OSError):
            for descriptor in (PROC / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        return find(pid)
    return None


def _listening_sockets(port: int) -> set[str]:
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    return sockets


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if process.alive:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` after the name: state is 0, parent 1, session 3, start time 19."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
