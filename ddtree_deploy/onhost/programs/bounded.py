"""Short calls of other programs (systemctl, nvidia-smi): bounded, and never longer than the step.

Whoever runs a step says with `watched` how to ask whether it has to end. So no caller has to hand a context
down to where a program is run, and none can forget it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_S = 0.1
_watchers: list[Callable[[], None]] = []


@contextlib.contextmanager
def watched(check: Callable[[], None]) -> Iterator[None]:
    """Inside, calls end with what `check` raises: the step's time is over, or somebody interrupted it."""
    _watchers.append(check)
    try:
        yield
    finally:
        _watchers.pop()


def look() -> None:
    """Raise what the watcher of the step at hand raises; nothing outside of steps."""
    if _watchers:
        _watchers[-1]()


def call(argv: list[str], *, seconds: float, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; both outputs as text. Its whole session is killed when it has to end.

    `more`: further arguments of subprocess.Popen (cwd, env, user).

    Raises OSError, subprocess.TimeoutExpired after `seconds`, and what the watcher raises.
    """
    end = time.monotonic() + seconds
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",  # what programs write for programs, whatever the locale is
        errors="replace",
        start_new_session=True,
        **more,
    ) as process:
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=LOOK_S)
                    return subprocess.CompletedProcess(argv, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    look()
                    if time.monotonic() >= end:
                        raise subprocess.TimeoutExpired(argv, seconds) from None
        except BaseException:  # what it left behind may still hold its outputs
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def in_thread(function: Callable[[], T], check: Callable[[], None] = look) -> T:
    """The result of a call that has a deadline of its own; it is left to itself when `check` raises."""
    done: list[T] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            done.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    threading.Thread(target=work, daemon=True).start()
    while not over.wait(LOOK_S):
        check()
    if errors:
        raise errors[0]
    return done[0]
