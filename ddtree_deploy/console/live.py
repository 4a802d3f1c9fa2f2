"""The view for a terminal: one row a step, with spinner, elapsed time and the last line of output."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ddtree_deploy.console.summary import fleet_lines, host_lines
from ddtree_deploy.console.view import line_of, print_error
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.view import Event
from ddtree_deploy.text import safe, span

MARKS = {
    "pass": Text("✔", style="green"),
    "fail": Text("✘", style="bold red"),
    "inconclusive": Text("?", style="yellow"),
    "skipped": Text("-", style="dim"),
    "undone": Text("↺", style="cyan"),
}


@dataclass
class Row:
    """A step on the screen. `verdict` is empty while it runs and None before it has begun."""

    name: str
    verdict: str | None = None
    begun: float = 0.0
    seconds: float = 0.0
    text: str = ""
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))


class LiveView:
    """Draws one host at a time; what is done stays on the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._rows: dict[str, Row] = {}
        self._title = ""

    def event(self, host: str, run: str, event: Event) -> None:
        kind, name = event["e"], str(event.get("step", ""))
        if kind == "plan":
            self._rows = {step: Row(step) for step in event.get("steps", [])}
            self._title = f"{host}  {event.get('action', '')} {run}"
        elif kind == "start":
            row = self._row(host, name)
            row.verdict, row.begun, row.text = "", time.monotonic(), ""
        elif kind == "progress":
            self._row(host, name).text = safe(event.get("text", ""), 300)
        elif kind == "verdict":
            row = self._row(host, name)
            row.verdict, row.seconds = str(event.get("verdict")), float(event.get("seconds", 0.0))
            row.text = safe(event.get("reason", ""), 300)
        elif kind == "undo":
            self._undo(host, name, event)
        elif (line := line_of(event)) is not None:
            self._console.print(Text(f"{host}  {line}", style="dim"))

    def text(self, lines: list[str]) -> None:
        self._stop()  # somebody may be asked next; the picture comes back with the next event
        for line in lines:
            self._console.print(Text(line))

    def outcome(self, outcome: Outcome) -> None:
        self.close()
        head, *rest = host_lines(outcome) or [""]
        if head:
            self._console.print()
            self._console.print(Text(head, style="bold green" if outcome.exit_code == 0 else "bold red"))
        self.text(rest)
        print_error(outcome)

    def fleet(self, outcomes: list[Outcome], waiting: list[str]) -> None:
        self.text(fleet_lines(outcomes, waiting))

    def close(self) -> None:
        """Leave the screen as it is; the next host draws anew."""
        self._stop()
        self._rows = {}

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _row(self, host: str, name: str) -> Row:
        if self._live is None:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=8)
            self._live.start()
        return self._rows.setdefault(name, Row(name))

    def _undo(self, host: str, name: str, event: Event) -> None:
        row = self._row(host, f"{event.get('what', 'undo')} {name}")
        phase = event.get("phase")
        if phase == "start":
            row.verdict, row.begun = "", time.monotonic()
        else:
            row.seconds = time.monotonic() - row.begun if row.begun else 0.0
            row.verdict = "undone" if phase == "done" else "fail"
        row.text = safe(event.get("reason", ""), 300)

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        table.title = Text(self._title, style="bold")
        table.title_justify = "left"
        for width in (1, None, 12):
            table.add_column(width=width, no_wrap=True, justify="right" if width == 12 else "left")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for row in self._rows.values():
            running = row.verdict == ""
            mark: RenderableType = row.spinner if running else MARKS.get(row.verdict or "", Text(" "))
            seconds = time.monotonic() - row.begun if running else row.seconds
            elapsed = "" if row.verdict is None else span(seconds)
            style = "bold" if running else "dim" if row.verdict in (None, "skipped") else ""
            table.add_row(mark, Text(row.name, style=style), Text(elapsed), Text(row.text, style=style))
        return table
