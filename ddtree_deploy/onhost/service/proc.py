"""Readers of /proc: processes, what they listen on, what they are children of. Read-only."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..wire.masking import escape, mask_argv

PROC = Path("/proc")
_LISTEN = "0A"
_MAPPED = b"\0" * 10 + b"\xff\xff"  # before an IPv4 address in an IPv6 one
# Children that SGLang's processes spawn show these instead of the server's command line.
_INTERNAL = re.compile(r"^sglang::|multiprocessing\.(spawn|resource_tracker|forkserver)")


@dataclass(frozen=True)
class Proc:
    """One line of the process table. (`pid`, `start`) is unique on this boot; `start` is in clock ticks."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    start: int
    state: str

    @property
    def key(self) -> tuple[int, int]:
        return (self.pid, self.start)


def text(pid: int | str, name: str) -> str:
    """What a file of /proc/PID says; empty where it is gone, or may not be read."""
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""


def read(pid: int) -> Proc | None:
    """The process, or None when there is none (a zombie is one: see `alive`)."""
    # The command name is in parentheses and may hold spaces and parentheses itself.
    fields = text(pid, "stat").rpartition(")")[2].split()
    if not fields:
        return None
    return Proc(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), fields[0])


def alive(pid: int, start: int) -> bool:
    """This very process runs (its number was not given to another, and it is no zombie)."""
    found = read(pid)
    return found is not None and found.start == start and found.state not in "ZX"


def pids() -> list[int]:
    """All process numbers now in use."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def table() -> dict[int, Proc]:
    """All processes that run now, zombies left out."""
    return {p.pid: p for p in map(read, pids()) if p is not None and p.state not in "ZX"}


def descendants(processes: dict[int, Proc], pid: int) -> set[int]:
    """`pid` and everything below it."""
    children: dict[int, list[int]] = {}
    for p in processes.values():
        children.setdefault(p.ppid, []).append(p.pid)
    found, todo = set(), [pid]
    while todo:
        one = todo.pop()
        if one in processes and one not in found:
            found.add(one)
            todo += children.get(one, [])
    return found


def _nul(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
    except OSError:
        return []
    return raw.removesuffix(b"\0").decode(errors="surrogateescape").split("\0") if raw else []


def argv(pid: int) -> list[str]:
    """The command line; empty for a kernel thread, a zombie or a process that is gone."""
    return _nul(PROC / str(pid) / "cmdline")


def environ(pid: int) -> dict[str, str]:
    """The environment at exec; empty when it may not be read."""
    pairs = (entry.partition("=") for entry in _nul(PROC / str(pid) / "environ"))
    return {name: value for name, equals, value in pairs if equals}


def cwd(pid: int) -> str:
    """The working folder, or empty."""
    try:
        return str((PROC / str(pid) / "cwd").readlink())
    except OSError:
        return ""


def uid(pid: int) -> int:
    """The owner, or -1."""
    try:
        return (PROC / str(pid)).stat().st_uid
    except OSError:
        return -1


def cgroups(pid: int) -> list[str]:
    """The cgroup paths of all hierarchies (v1, v2 or both)."""
    lines = (line.split(":", 2) for line in text(pid, "cgroup").splitlines())
    return [parts[2] for parts in lines if len(parts) == 3]


def in_cgroup(path: str) -> set[Proc]:
    """Living processes in this cgroup or below. Works the same for cgroup v1, v2 and hybrid hosts."""
    wanted = path.rstrip("/")
    if not wanted:
        return set()
    inside = (pid for pid in pids() if any(c == wanted or c.startswith(wanted + "/") for c in cgroups(pid)))
    return {p for p in map(read, inside) if p is not None and p.state not in "ZX"}


def bytes_read(pids: Iterable[int]) -> int:
    """Bytes read so far by these processes and the children they have reaped."""
    return sum(int(count) for pid in pids for count in re.findall(r"rchar: (\d+)", text(pid, "io")))


def listening_inodes() -> dict[str, int]:
    """Socket inode -> TCP port, of every listening socket in this network namespace, IPv4 and IPv6."""
    return {inode: port for inode, port, _ in listening()}


def listening(pid: int | str = "self") -> list[tuple[str, int, bytes]]:
    """(socket inode, TCP port, address in network order) of all that listens in a process's network."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in text(pid, f"net/{name}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                address, _, port = fields[1].rpartition(":")
                found.append((fields[9], int(port, 16), _address(address)))
    return found


def _address(digits: str) -> bytes:
    """From hexadecimal digits, each 32 bits of it in the machine's order."""
    words = [bytes.fromhex(digits[i : i + 8]) for i in range(0, len(digits), 8)]
    raw = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return raw.removeprefix(_MAPPED) if len(raw) == 16 else raw


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.scandir(PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(fd.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def sockets_of(pids: set[int]) -> set[tuple[int, str]]:
    """(TCP port, socket inode) of all that any of these processes listens on."""
    inodes = listening_inodes() if pids else {}
    return {(inodes[inode], inode) for pid in pids for inode in _sockets(pid) & inodes.keys()}


def holders(port: int) -> set[int]:
    """Processes that listen on this port; empty also when they may not be seen (see `port_open`)."""
    return holding({inode for inode, p in listening_inodes().items() if p == port})


def holding(inodes: set[str]) -> set[int]:
    """Processes that have one of these sockets open, as far as they may be seen."""
    return {pid for pid in pids() if _sockets(pid) & inodes} if inodes else set()


def port_open(port: int) -> bool:
    """Somebody listens on this TCP port."""
    return port in listening_inodes().values()


def server_of(port: int) -> Proc | None:
    """The process that was started to serve this port: the holder, or the parent that spawned the holder."""
    holding = sorted(holders(port))
    if not holding:
        return None
    processes, pid = table(), holding[0]
    while True:
        parent = processes.get(processes[pid].ppid) if pid in processes else None
        if parent is None or parent.pid == 1:
            break
        words = argv(pid)
        spawned = bool(_INTERNAL.search(" ".join(words))) or words == argv(parent.pid)
        if not spawned and parent.pid not in holding:
            break
        pid = parent.pid
    return processes.get(pid)


def command(pid: int, limit: int = 160) -> str:
    """The command line for people: one line, secrets masked, cut."""
    # A renamed process pads its new name.
    line = escape(" ".join(" ".join(mask_argv(argv(pid))).split())) or "?"
    return line if len(line) <= limit else line[: limit - 3] + "..."


def pause(waited: float, least: float, most: float) -> float:
    """Seconds until the next look: a tenth of those that went by, within `least` and `most`."""
    return min(most, max(least, waited / 10))
