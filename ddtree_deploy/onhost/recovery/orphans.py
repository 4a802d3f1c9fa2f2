"""After a crash: a run without a verdict is finished or undone from its journal, by its own runner."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..state import holder, layout, releases
from ..state.journal import Tail, read
from ..state.lock import Held, SiteLock
from ..wire.protocol import STATE_UNTOUCHED
from . import deferral

LIMIT_S = 7200.0
# A recovery that is killed (for want of memory, say) may have the service down already; it can be done again.
ATTEMPTS = 3


def orphans(site_dir: Path, but: str = "") -> list[str]:
    """Runs that need recovery, newest first: a later run's changes lie on top of an earlier one's."""
    folder = site_dir / "runs"
    names = sorted((p.name for p in folder.iterdir() if p.is_dir()), reverse=True) if folder.is_dir() else []
    return [n for n in names if n != but and releases.unfinished(folder / n)]


def by_its_own_runner(
    run_dir: Path, lock_fd: int, watch: Callable[[dict[str, Any]], None], folder_fds: Sequence[int] = ()
) -> tuple[int, str]:
    """Recover a run with the runner that made it, which shares our lock. Returns its exit code and reason.

    One that is killed begins anew, some times. `watch` gets the events that the recovery adds to the run's
    journal, as they come.
    """
    journal = run_dir / layout.JOURNAL
    events, length = read(journal)
    if not events:  # its first line comes before anything is changed
        for name in layout.RECEIVED:
            (run_dir / name).unlink(missing_ok=True)
        return 1, f"{STATE_UNTOUCHED} (it had not begun)"
    tail = Tail(journal, length)
    for _ in range(ATTEMPTS):
        status = _attempt(run_dir, lock_fd, tail, watch, folder_fds)
        events, _torn = read(journal)
        if deferral.here(events):
            return deferral.EXIT, events[-1]["text"]
        if events and events[-1]["e"] == "end":
            end = events[-1]
            return end["exit"], f"{end['state']} ({end['reason']})"
        if status >= 0:
            break
    return 3, f"its runner ended with {status}; see {run_dir}/logs/recover.log"


def _attempt(
    run_dir: Path,
    lock_fd: int,
    tail: Tail,
    watch: Callable[[dict[str, Any]], None],
    folder_fds: Sequence[int],
) -> int:
    """Returns the exit status; negative: the signal that ended it."""
    runner_file = str(run_dir / layout.RUNNER)
    argv = [sys.executable, "-I", "-S", runner_file, "recover-run", str(run_dir), str(lock_fd)]
    with (run_dir / "logs" / "recover.log").open("ab") as log:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock_fd, *folder_fds],  # the kernel keeps the folders held while it lives
            start_new_session=True,
            cwd="/",
        )
    while True:
        status = child.poll()
        lines = tail.read().splitlines()
        for line in lines:
            watch(json.loads(line))
        if status is not None:
            return status
        if not lines:
            time.sleep(0.05)


def in_words(event: dict[str, Any]) -> str:
    """A line of a recovery's journal for whoever waits for it; empty for those that say nothing."""
    if event["e"] == "undo":
        text = f"{event['what']} of {event['step']}: {event['phase']} {event.get('reason', '')}"
        return text.rstrip()
    return str(event["text"]) if event["e"] == "progress" else ""


def say(**event: Any) -> None:
    """One JSON line to whoever waits for a recovery or an unlock."""
    with contextlib.suppress(OSError):  # nobody listens any more; the work goes on
        print(json.dumps(event), flush=True)


def recover_site(site_dir: Path) -> int:
    """`recover SITE_DIR`: every run of this venv that needs it. Prints JSON lines.

    Returns 0, 3, 5 (locked), or 8 (the host goes down, the rest is done when it boots).
    """

    def told(event: dict[str, Any]) -> None:
        if text := in_words(event):
            say(e="progress", text=text)

    lock = SiteLock(site_dir)
    dead = orphans(site_dir)
    plans = [layout.read_json(site_dir / "runs" / run / layout.PLAN) for run in dead]
    folders = {folder for plan in plans if isinstance(plan, dict) for folder in layout.venv_folders(plan)}
    try:
        # Named after the run, so that it can be followed.
        lock.acquire(next(iter(dead), ""), "a recovery", "recover", sorted(folders))
    except Held as held:
        say(e="locked", owner=holder.of(held))
        return 5
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the session may end; the recovery goes on
    worst = 0
    for run in orphans(site_dir):
        say(e="recovering", run=run)
        code, reason = by_its_own_runner(site_dir / "runs" / run, lock.fd, told, lock.folder_fds)
        say(e="recovered", run=run, exit=code, reason=reason)
        if code in (3, deferral.EXIT):
            worst = code if worst != 3 else worst
        if code == deferral.EXIT:
            break
    lock.release()
    return worst
