"""`unlock SITE_DIR SECONDS`: end the run that holds a venv, in order if it listens, else hard.

Prints JSON lines. What was killed is recovered at once, so that the host is as before, or finished.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..recovery import orphans
from ..recovery.orphans import say
from ..state import layout
from ..state.held import LOCK, is_held
from ..state.journal import read
from ..state.lock import read_owner
from .follow import interrupt

POLL_S = 0.1
KILLED_S = 30.0
_COMMANDS = (b"run", b"recover", b"recover-run")


def unlock(site_dir: Path, patience: float) -> int:
    """Returns 0 (the lock is free), 3 (a person is needed), or 5 (what holds the lock cannot be ended)."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the session may end; a recovery goes on
    lock = site_dir / LOCK
    run = str(read_owner(site_dir).get("run", ""))
    run_dir = site_dir / "runs" / run
    if is_held(lock):
        asked = bool(run) and interrupt(run_dir)
        say(e="progress", text=f"SIGTERM to the runner of {run}: waiting for its undo" if asked else "")
        if asked and _within(patience, lambda: not is_held(lock)):
            end = _end_of(run_dir)
            say(e="unlocked", run=run, how="interrupted", **end)
            return 3 if end["exit"] == 3 else 0
    killed = []
    for pid in holders(site_dir) if is_held(lock) else []:
        killed.append(pid)
        say(e="progress", text=f"SIGKILL to process {pid}")
        _kill(pid)
    if not _within(KILLED_S, lambda: not is_held(lock)):
        say(
            e="unlocked",
            run=run,
            how="not at all",
            exit=5,
            state="",
            reason=f"{lock} is held by no runner of ours",
        )
        return 5
    code = orphans.recover_site(site_dir)
    end = _end_of(run_dir)
    say(
        e="unlocked", run=run, how="killed and recovered" if killed else "found free", **{**end, "exit": code}
    )
    return code


def holders(site_dir: Path) -> list[int]:
    """Processes of runners and recoveries of this venv, by their command line; not this one."""
    found = []
    runs = os.fsencode(site_dir) + b"/runs/"
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        for runner, command in itertools.pairwise(words):
            if runner.startswith(runs) and runner.endswith(b"/runner.pyz") and command in _COMMANDS:
                found.append(int(name))
    return sorted(found)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_S)
    return True


def _end_of(run_dir: Path) -> dict[str, Any]:
    """How the run ended, from its journal."""
    ends = [e for e in read(run_dir / layout.JOURNAL)[0] if e["e"] == "end"]
    last = ends[-1] if ends else {}
    return {"exit": last.get("exit", 0), "state": last.get("state", ""), "reason": last.get("reason", "")}
