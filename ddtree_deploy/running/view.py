"""What a run tells whoever shows it; `console` has the ways of showing."""

from __future__ import annotations

from typing import Any, Protocol

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
