"""What a run tells whoever shows it; `console` has the ways of showing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ddtree_deploy.running.complaint import bug, complain
from ddtree_deploy.running.outcome import Outcome

Event = dict[str, Any]


class View(Protocol):
    """Shows a run. `event` takes the host's journal events and the controller's own (docs/events.md)."""

    def event(self, host: str, run: str, event: Event) -> None: ...
    def text(self, lines: list[str]) -> None:
        """Show lines that are for people only (a plan)."""

    def outcome(self, outcome: Outcome) -> None: ...
    def fleet(self, outcomes: list[Outcome], waiting: list[str]) -> None: ...
    def close(self) -> None: ...


class Steady:
    """A view whose errors end nothing: the first is told, and the run is followed."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._told = False
        self.text = view.text  # but for this one, which shows what somebody is asked to agree to

    def event(self, host: str, run: str, event: Event) -> None:
        self._draw(self._view.event, host, run, event)

    def outcome(self, outcome: Outcome) -> None:
        self._draw(self._view.outcome, outcome)

    def fleet(self, outcomes: list[Outcome], waiting: list[str]) -> None:
        self._draw(self._view.fleet, outcomes, waiting)

    def close(self) -> None:
        self._draw(self._view.close)

    def _draw(self, draw: Callable[..., None], *what: Any) -> None:
        try:
            draw(*what)
        except Exception as error:
            if not self._told:
                self._told = True
                complain(f"{bug(error).message}; not all is shown, the run is followed")
