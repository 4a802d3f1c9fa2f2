"""SIGTERM, SIGINT, and a controller that is gone, as one orderly interruption."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType

from ..context import Context
from ..state import layout
from ..wire.protocol import HEARTBEAT_LOST_S


class Interruption:
    """While entered, signals set `ctx.stop_event`; so does the controller's absence, if the plan wants that.

    The handler only writes to a pipe: `Event.set` takes a lock that the interrupted main thread may hold.
    """

    def __init__(self, ctx: Context, run_dir: Path) -> None:
        self._ctx = ctx
        self._watched = run_dir / layout.WATCHED if ctx.plan.on_controller_loss == "undo" else None
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Interruption:
        self._old = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
        self._old[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.write(self._write, b"q")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._write, b"t" if number == signal.SIGTERM else b"i")
        except BlockingIOError:
            return  # the pipe is full of the same message

    def _watch(self) -> None:
        import select

        seen, since = self._stamp(), time.monotonic()
        while True:
            ready, _, _ = select.select([self._read], [], [], 1.0 if self._watched else None)
            if ready:
                byte = os.read(self._read, 1)
                if byte == b"q":
                    return
                self._stop("interrupted by SIGTERM" if byte == b"t" else "interrupted by SIGINT")
            elif self._watched:
                stamp = self._stamp()
                if stamp != seen:
                    seen, since = stamp, time.monotonic()
                elif time.monotonic() - since > HEARTBEAT_LOST_S:
                    self._stop("the controller is gone, and the plan says on_controller_loss: undo")

    def _stop(self, why: str) -> None:
        if not self._ctx.stop_event.is_set():
            self._ctx.interrupted_by = why
            self._ctx.stop_event.set()

    def _stamp(self) -> int:
        try:
            return self._watched.stat().st_mtime_ns if self._watched else 0
        except OSError:
            return 0
