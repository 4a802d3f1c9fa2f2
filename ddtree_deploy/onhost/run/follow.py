"""Stream a run's journal to whoever is connected, as it grows; take heartbeats and an interrupt from them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..recovery import deferral
from ..state import layout
from ..state.held import is_held
from ..state.journal import Tail, read
from ..wire.protocol import HEARTBEAT_LOST_S, HEARTBEAT_S, STATE_BROKEN

POLL_S = 0.015
START_S = 120.0  # a runner that has not written its first line by then has not started
GUARD_S = 60.0  # after a boot the guard's recovery may be about to begin
COMPLAINT_S = 5.0  # the same, where its log holds something: it died of that
LOST_EXIT = 3
GONE_EXIT = 8  # the controller is gone: nobody reads this status


class Controls:
    """Lines from the controller on fd 0, without blocking."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._rest = b""
        self.closed = False

    def wait(self, seconds: float) -> Iterator[str]:
        """Lines that arrive within `seconds` (returns at the first)."""
        if self.closed:
            time.sleep(seconds)
            return
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if not ready:
            return
        data = os.read(self._fd, 65536)
        self.closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").strip()


def follow(run_dir: Path, offset: int) -> int:
    """Until the run has ended (its exit code) or died (3); 8: no controller, or the host goes down."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    tail = Tail(run_dir / layout.JOURNAL, offset)
    controls = Controls()
    started = heard = time.monotonic()
    beat = 0.0
    asked = False  # an interrupt that the runner has not got yet: it may be only starting
    _touch(run_dir)
    try:
        while True:
            # Liveness is asked before the read: what a runner wrote before it died is then seen in full.
            alive = is_held(run_dir / layout.ALIVE)
            data = tail.read()
            _send(data)
            code = _exit_code(data)
            if code is not None:
                return code
            if data:
                continue
            now = time.monotonic()
            if not alive and (tail.offset > 0 or now - started > _start_bound(run_dir)):
                code = _ended_or_lost(run_dir, now - started)
                if code is not None:
                    return code
            if now - beat >= HEARTBEAT_S:
                beat = now
                heartbeat()
            for line in controls.wait(POLL_S):
                heard = time.monotonic()
                asked = asked or line == "interrupt"
                _touch(run_dir)
            if asked:
                asked = not interrupt(run_dir)
            if controls.closed or time.monotonic() - heard > HEARTBEAT_LOST_S:
                return GONE_EXIT
    except BrokenPipeError:
        return GONE_EXIT


def heartbeat() -> None:
    """Say that there is something to follow."""
    _send(b'{"e":"hb"}\n')


def _start_bound(run_dir: Path) -> float:
    if layout.booted_since(run_dir / layout.RUNNER):  # whatever it was waiting for is gone
        return COMPLAINT_S
    try:
        return COMPLAINT_S if (run_dir / "logs" / "runner.log").stat().st_size else START_S
    except OSError:
        return START_S


def _send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _exit_code(data: bytes) -> int | None:
    """The exit code of an `end` event among these lines."""
    for line in data.splitlines():
        if b'"e":"end"' in line:
            event = json.loads(line)
            if event["e"] == "end":
                return int(event["exit"])
    return None


def _ended_or_lost(run_dir: Path, waited: float) -> int | None:
    """No runner and nothing new: an offset after the end, or a runner that died. None: it may be going on."""
    events, _ = read(run_dir / layout.JOURNAL)
    if events and events[-1]["e"] == "end":
        return int(events[-1]["exit"])
    if deferral.here(events):
        return deferral.EXIT
    if waited < GUARD_S and deferral.awaits_guard(events):
        return None
    _send(json.dumps(lost_event(run_dir, events), separators=(",", ":")).encode() + b"\n")
    return LOST_EXIT


def lost_event(run_dir: Path, events: list[dict[str, Any]]) -> dict[str, Any]:
    """What to tell people of a runner that is gone without a verdict."""
    first = events[0] if events else {}
    starts = [e["step"] for e in events if e["e"] == "start"]
    changed = any(e["e"] == "intent" for e in events)
    log = run_dir / "logs" / "runner.log"
    said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    what = "the host went down" if any(e["e"] == deferral.EVENT for e in events) else "the runner died"
    reason = f"{what} {'at step ' + starts[-1] if starts else 'before its first step'}"
    if said:
        reason += f" ({said[0][:200]})"
    return {
        "e": "lost",
        "run": run_dir.name,
        "verdict": "fail",
        "exit": LOST_EXIT,
        "state": STATE_BROKEN if changed else "nothing was changed yet",
        "step": starts[-1] if starts else "",
        "reason": f"{reason}; the next run on this host recovers it first",
        "next": f"ddtree-deploy recover {first.get('host', 'TARGET')}",
    }


def interrupt(run_dir: Path) -> bool:
    """SIGTERM to the run's runner; false when there is none. The pid is checked to be that runner's."""
    events, _ = read(run_dir / layout.JOURNAL)
    pids = [e["pid"] for e in events if e["e"] in ("run", "recover")]
    if not pids or not is_held(run_dir / layout.ALIVE):
        return False
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pids[-1])  # from here on the number cannot come to mean another process
        try:
            words = Path(f"/proc/{pids[-1]}/cmdline").read_bytes().split(b"\0")
            if os.fsencode(run_dir) in words:
                signal.pidfd_send_signal(fd, signal.SIGTERM)
                return True
        finally:
            os.close(fd)
    return False


def _touch(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(run_dir / layout.WATCHED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.utime(fd)
        os.close(fd)
