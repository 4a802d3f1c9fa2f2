"""What a signal does while no run has begun: the command ends in one line."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130


def at_once(number: int, frame: FrameType | None) -> None:
    """Nothing has begun. An exception here could be swallowed, or shown, by whatever is being imported."""
    with contextlib.suppress(OSError):
        os.write(2, b"ddtree-deploy: interrupted; nothing was touched\n")
    os._exit(INTERRUPTED)


def raises(number: int, frame: FrameType | None) -> None:
    """For commands that have something to put away."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside, signals are for `at_once`."""
    before = {number: signal.signal(number, at_once) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
