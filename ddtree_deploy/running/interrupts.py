"""Ctrl-C and SIGTERM: at once while nothing runs on the host, in order once something does, and no more once
its verdict is known: that must get out. A terminal that is closed (SIGHUP) asks for no undo: what runs is
followed to its end, and nothing more is begun."""

from __future__ import annotations

import signal
from types import FrameType

from ddtree_deploy.running.signals import SIGNALS


class Interrupts:
    """While active, signals raise KeyboardInterrupt; between `hold` and `begin` they are only counted.

    A second controller-side wait must be able to see how often the user asked, so `count` never goes back.
    """

    def __init__(self) -> None:
        self.count = 0
        self.held = False
        self._hung_up = False
        self._before: dict[signal.Signals, object] = {}

    def hold(self) -> None:
        """From now on only count: the caller looks at `count` between its waits."""
        self.held = True

    def begin(self) -> None:
        """Nothing runs yet: signals raise, also one that was only counted since the last run had ended."""
        self.held = False
        if self.count or self._hung_up:
            raise KeyboardInterrupt

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if not self.held and self.count == 1:  # the first has ended the command; its verdict must get out
            raise KeyboardInterrupt

    def _closed(self, number: int, frame: FrameType | None) -> None:
        self._hung_up = True
        if not self.held:
            self._caught(number, frame)

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._caught)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._closed)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # An impatient CI system sends more: those must not take the place of the exit code.
            ended = self.count or self.held or self._hung_up
            signal.signal(number, signal.SIG_IGN if ended else handler)  # type: ignore[arg-type]
