"""When a fault strikes: an instant of a run, seen in the journal on the host's disk as it is written."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.hosts import PATIENCE, Host, LabError, wait_for

POLL_S = 0.01
LOOK_S = 0.1  # how often the command and the runner are looked at while the journal is quiet
IN_MODIFY = 0x2
_libc = ctypes.CDLL("libc.so.6", use_errno=True)
Event = dict[str, Any]


class Tail:
    """The journal of one run, line by line as it grows."""

    def __init__(self, host: Host, run: str) -> None:
        self._host, self._run = host, run
        self._path: Path | None = None
        self._watch = -1
        self._read = 0
        self.events: list[Event] = []
        self.runner = (0, 0)  # which one of this journal, and its pid here; see runner_of

    def path(self) -> Path | None:
        if self._path is None:
            pattern = f"sites/*/runs/{self._run}/journal.jsonl"
            self._path = next(iter(self._host.path("/var/lib/ddtree-deploy").glob(pattern)), None)
        return self._path

    def wait(self) -> None:
        """Until the journal has grown, or for some moments."""
        path = self.path()
        if path is None:
            time.sleep(POLL_S)
            return
        if self._watch < 0:
            self._watch = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if _libc.inotify_add_watch(self._watch, os.fsencode(path), IN_MODIFY) < 0:
                raise OSError(ctypes.get_errno(), f"inotify: {path}")
            return  # it may have grown meanwhile
        if select.select([self._watch], [], [], LOOK_S)[0]:
            os.read(self._watch, 1 << 16)

    def __del__(self) -> None:
        if self._watch >= 0:
            os.close(self._watch)

    def more(self) -> list[Event]:
        """The events that are new."""
        path = self.path()
        if path is None:
            return []
        try:
            with path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[: data.rfind(b"\n") + 1]  # a part of a line is taken back where the disk is full
        self._read += len(data)
        new = [json.loads(line) for line in data.splitlines()]
        self.events += new
        return new


@dataclass(frozen=True)
class Instant:
    """A moment of a step. `nth`: which of its events (progress, intents, ...) to wait for, from 0."""

    step: str
    moment: str  # before | during | after | undo
    nth: int = 0
    delay: float = 0.0  # seconds after that; a step that says nothing in between is struck by its clock


def reached(at: Instant, events: list[Event]) -> bool:
    """Whether these events of a run include the instant; also when it has just been passed."""
    if at.moment == "undo":
        return sum(e["e"] in ("undo", "recover", "progress") for e in _mending(events)) > at.nth
    of_step = [e for e in events if e.get("step") == at.step and e["e"] != "undo"]
    if any(e["e"] == "verdict" for e in of_step):
        return True
    if at.moment == "after" or not of_step:
        return False
    between = [e for e in of_step if e["e"] != "start"]
    return at.moment == "before" or len(between) > at.nth or bool(at.delay)


def _mending(events: list[Event]) -> list[Event]:
    """The events from the first undo, or from the first recovery, on."""
    for i, event in enumerate(events):
        if event["e"] in ("undo", "recover"):
            return events[i:]
    return []


def await_instant(
    at: Instant, host: Host, tail: Tail, over: Callable[[], bool], timeout: float = PATIENCE
) -> bool:
    """Wait for it; False when the run (or all that could reach it) is over before."""
    deadline = time.monotonic() + timeout
    while True:
        ended = over()
        runner_of(host, tail)  # known in advance, the fault is there at once
        if reached(at, tail.events):
            time.sleep(at.delay)
            return True
        if ended or any(e["e"] == "end" for e in tail.events):
            return False
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout:.0f} s for {at}; the run said {tail.events[-3:]}")
        tail.wait()


def runner_of(host: Host, tail: Tail) -> int:
    """The runner, or recovery, that writes this journal, as a pid of this machine; 0 when there is none."""
    tail.more()
    said = [e["pid"] for e in tail.events if e["e"] in ("run", "recover")]
    if not said:
        return 0
    if tail.runner[0] == len(said):
        return tail.runner[1] if Path(f"/proc/{tail.runner[1]}").exists() else 0
    for pid in host.pids():
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{pid}/status").read_text()
            inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
            if int(inner) == said[-1] and b"runner.pyz" in Path(f"/proc/{pid}/cmdline").read_bytes():
                tail.runner = (len(said), pid)
                return pid
    return 0


@contextlib.contextmanager
def held_still(pid: int) -> Iterator[None]:
    """Stop a process while a fault is made, so that the fault meets it where it is.

    It has to have stopped: of two signals that wait for a process that has no CPU, SIGTERM comes first.
    """
    if not pid:
        yield
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: not _runs(pid), f"process {pid} to stand still")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _runs(pid: int) -> bool:
    """Whether a thread of it is neither stopped nor gone."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return any(state not in "TtZX" for state in states)


def children(pid: int) -> list[int]:
    """Processes that a process has started and that live."""
    found = []
    with contextlib.suppress(OSError):
        for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            state = Path(f"/proc/{word}/stat").read_text().rpartition(")")[2].split()[0]
            found += [int(word)] if state not in "ZX" else []
    return found
