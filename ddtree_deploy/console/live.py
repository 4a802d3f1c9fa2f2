"""The view for a terminal: one row a step, with verdict, elapsed time and the last line of output.

Step and verdict are always whole, and read without colour; what there is too little room for is the rest.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ddtree_deploy.console.summary import fleet_lines, host_lines
from ddtree_deploy.console.view import line_of, print_error
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.view import Event
from ddtree_deploy.text import safe, span

# verdict: (mark, mark where the terminal has no such letters, style)
MARKS = {
    "pass": ("✔", "+", "green"),
    "fail": ("✘", "x", "bold red"),
    "inconclusive": ("?", "?", "yellow"),
    "skipped": ("-", "-", "dim"),
    "undone": ("↺", "<", "cyan"),
    "checked": ("↺", "<", "cyan"),
}
SPINNERS = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")
VERDICT = len("inconclusive")
ELAPSED = len("12 min 05 s")
FEWEST = 12  # cells; less of a detail says nothing
ROWS_BELOW = 2  # of the screen: what comes next is seen, too


@dataclass
class Row:
    """A step on the screen. `verdict` is empty while it runs and None before it has begun."""

    name: str
    verdict: str | None = None
    begun: float = 0.0
    seconds: float = 0.0
    text: str = ""


class LiveView:
    """Draws one host at a time; what is done stays on the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._rows: dict[str, Row] = {}
        self._title = ""
        self._plain = self._fit("✔✘↺⠋") != "✔✘↺⠋"

    def event(self, host: str, run: str, event: Event) -> None:
        kind, name = event["e"], str(event.get("step", ""))
        if kind == "plan":
            self._rows = {step: Row(step) for step in event.get("steps", [])}
            self._title = self._fit(f"{host}  {event.get('action', '')} {run}")
        elif kind == "start":
            row = self._row(name)
            row.verdict, row.begun, row.text = "", time.monotonic(), ""
        elif kind == "progress":
            self._row(name).text = safe(event.get("text", ""), 300)
        elif kind == "verdict":
            row = self._row(name)
            row.verdict, row.seconds = str(event.get("verdict")), float(event.get("seconds", 0.0))
            row.text = safe(event.get("reason", ""), 300)
        elif kind == "undo":
            self._undo(name, event)
        elif (line := line_of(event)) is not None:
            self._console.print(Text(self._fit(f"{host}  {line}"), style="dim"))

    def text(self, lines: list[str]) -> None:
        self._stop()  # somebody may be asked next; the picture comes back with the next event
        for line in lines:
            self._console.print(Text(self._fit(line)))

    def outcome(self, outcome: Outcome) -> None:
        self.close()
        head, *rest = host_lines(outcome) or [""]
        if head:
            style = "bold green" if outcome.exit_code == 0 else "bold red"
            self._console.print()
            self._console.print(Text(self._fit(head), style=style))
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
            live, self._live = self._live, None
            live.stop()

    def _row(self, name: str) -> Row:
        row = self._rows.setdefault(name, Row(name))
        if self._live is None:
            self._live = Live(
                get_renderable=self._picture,
                console=self._console,
                refresh_per_second=8,
                redirect_stderr=sys.stderr.isatty(),  # else it goes where it was sent
            )
            self._live.start()
        return row

    def _undo(self, name: str, event: Event) -> None:
        what = event.get("what", "undo")
        row = self._row(f"{what} {name}")
        phase = event.get("phase")
        if phase == "start":
            row.verdict, row.begun = "", time.monotonic()
        else:
            row.seconds = time.monotonic() - row.begun if row.begun else 0.0
            row.verdict = "fail" if phase != "done" else "undone" if what == "undo" else "checked"
        row.text = safe(event.get("reason", ""), 300)

    def _fit(self, text: str) -> str:
        """What this terminal's encoding has not, escaped: before the columns are measured."""
        return text.encode(self._console.encoding, "backslashreplace").decode(self._console.encoding)

    def _picture(self) -> RenderableType:
        """Drawn by a thread of the library's as well, while rows are added."""
        rows = list(self._rows.values())
        if self._live is not None:  # the last picture has all
            begun = [i for i, row in enumerate(rows) if row.verdict is not None]
            room = max(1, self._console.height - 1)
            first = max(0, min(len(rows), max(begun, default=0) + 1 + ROWS_BELOW) - room)
            rows = rows[first : first + room]
        width = self._console.width
        longest = max(14, width // 3)
        column = max((size for row in rows if (size := cell_len(row.name)) <= longest), default=0)
        return Group(Text(self._title, style="bold"), *(self._line(row, column, width) for row in rows))

    def _line(self, row: Row, column: int, width: int) -> Text:
        running, done = row.verdict == "", bool(row.verdict)
        seconds = time.monotonic() - row.begun if running else row.seconds
        verdict = "running" if running else row.verdict or ""
        style = "bold" if running else "dim" if row.verdict in (None, "skipped") else ""
        line = Text(overflow="fold")
        if running:
            frames = SPINNERS[self._plain]
            line.append(frames[int(time.monotonic() * 10) % len(frames)], "green")
        else:
            mark = MARKS.get(verdict, (" ", " ", ""))
            line.append(mark[self._plain], mark[2])
        line.append(f" {row.name}", style)
        if cell_len(row.name) > column:  # a line of its own
            line.append("\n ")
            line.append(" " * (column + 1))
        else:
            line.append(" " * (column - cell_len(row.name)))
        line.append(f"  {verdict:<{VERDICT}}", MARKS[verdict][2] if verdict in MARKS else style)
        room = width - (2 + column + 2 + VERDICT)
        if room >= 2 + ELAPSED:
            room -= 2 + ELAPSED
            line.append(f"  {span(seconds) if running or done else '':>{ELAPSED}}", style)
        text = self._fit(row.text)
        if room >= 2 + FEWEST and text:
            whole = cell_len(text) <= room - 2
            line.append(f"  {text if whole else set_cell_size(text, room - 5) + '...'}", style)
        line.rstrip()
        return line
