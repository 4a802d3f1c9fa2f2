"""The plain ways of showing a run: one line an event for pipes and CI logs, or one JSON object."""

from __future__ import annotations

import json
import time
from typing import IO

from ddtree_deploy.console.summary import fleet_lines, host_lines
from ddtree_deploy.running.complaint import complain
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.view import Event
from ddtree_deploy.text import safe, span

PROGRESS_EVERY_S = 5.0


class _Lines:
    """What both ways share: lines on stdout."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def close(self) -> None:
        self._out.flush()

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)


class PlainView(_Lines):
    """Lines `HOST  STEP  what`. Progress of a step at most every 5 s."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__(out)
        self._shown: dict[tuple[str, str], float] = {}

    def event(self, host: str, run: str, event: Event) -> None:
        line = line_of(event)
        if line is None:
            return
        if event["e"] == "progress":
            key = (host, str(event.get("step", "")))
            if time.monotonic() - self._shown.get(key, float("-inf")) < PROGRESS_EVERY_S:
                return
            self._shown[key] = time.monotonic()
        self._print(f"{host}  {line}")

    def text(self, lines: list[str]) -> None:
        for line in lines:
            self._print(line)

    def outcome(self, outcome: Outcome) -> None:
        lines = host_lines(outcome)
        self.text(["", *lines] if lines else [])
        print_error(outcome)

    def fleet(self, outcomes: list[Outcome], waiting: list[str]) -> None:
        self.text(fleet_lines(outcomes, waiting))


class JsonView(_Lines):
    """JSON lines, one object an event; keys are stable (docs/events.md). Nothing else goes to stdout."""

    def event(self, host: str, run: str, event: Event) -> None:
        self._object({"host": host, "run": run, "t": round(time.time(), 3), **event})

    def text(self, lines: list[str]) -> None:
        return

    def outcome(self, outcome: Outcome) -> None:
        self._object({"t": round(time.time(), 3), "e": "outcome", **outcome.to_dict()})
        print_error(outcome)

    def fleet(self, outcomes: list[Outcome], waiting: list[str]) -> None:
        codes = {o.host: o.exit_code for o in outcomes}
        self._object({"t": round(time.time(), 3), "e": "fleet", "exits": codes, "waiting": waiting})

    def _object(self, data: Event) -> None:
        # ASCII, so that no control character of a host's output reaches a terminal as itself.
        self._print(json.dumps(data, separators=(",", ":")))


def print_error(outcome: Outcome) -> None:
    """The one line on stderr of an outcome that is an error of ours, not a verdict of the host."""
    if outcome.error:
        complain(outcome.error)


def line_of(event: Event) -> str | None:
    """The event as one line for people, or None for one that is not shown. Pure."""
    kind = event["e"]
    step = f"{safe(event.get('step', '')):<10}"
    if kind == "verdict":
        seconds = span(float(event.get("seconds", 0.0)))
        return f"{step} {event.get('verdict', '?'):<12} {seconds:>12}  {safe(event.get('reason', ''))}"
    if kind == "start":
        return f"{step} ..."
    if kind == "progress":
        return f"{step}   {safe(event.get('text', ''), 200)}"
    if kind == "output" and event.get("rc"):
        tail = [line for line in str(event.get("tail", "")).splitlines() if line.strip()][-1:]
        return f"{step}   exit status {event['rc']}: {safe(tail[0] if tail else '', 300)}"
    if kind == "undo":
        reason = f": {safe(event['reason'])}" if event.get("reason") else ""
        return f"{step} {safe(event.get('what', 'undo'))} {safe(event.get('phase', ''))}{reason}"
    if kind == "noise":
        return f"{step}   host says: {safe(event.get('text', ''), 200)}"
    if kind == "recovering":
        return f"{step} run {safe(event.get('run', ''))} is recovered by its own runner"
    if kind in ("note", "connected", "facts", "sent", "disconnected", "reconnected", "interrupt", "deferred"):
        return f"{kind:<12} {safe(event.get('text', ''))}"
    return None
