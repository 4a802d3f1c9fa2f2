"""The cells of the matrix, as data: which there are, which are left out and why, which go to a short cut."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MOMENTS = ("before", "during", "after")
FAULTS = (
    "kill-runner",
    "kill-controller",
    "cut",
    "cut-5s",
    "freeze-5s",
    "power-cut",
    "reboot",
    "disk-full",
    "read-only",
    "time-out",
    "SIGINT",
    "SIGTERM",
)
STEPS = {
    "rollout": (
        "local",
        "lock",
        "preflight",
        "backup",
        "stage",
        "compile",
        "smoke",
        "baseline",
        "stop",
        "install",
        "start",
        "health",
        "tokens",
        "acceptance",
        "benchmark",
        "soak",
        "unlock",
    ),
    "rollback": ("lock", "preflight", "backup", "stage", "stop", "install", "start", "health", "unlock"),
}
# A first fault that makes the host undo, or that needs a recovery; and what then strikes that.
FIRST_OF_TWO = ("kill-runner", "power-cut", "reboot", "SIGINT", "time-out", "disk-full")
SECOND = ("kill-runner", "kill-controller", "cut", "freeze-5s", "power-cut", "reboot", "disk-full", "SIGTERM")
# On a host whose unit has dependents, in the middle of each step: a recovery by command, and one at boot.
WITH_DEPENDENTS = ("kill-runner", "power-cut")
# Steps from which on there is something to undo.
CHANGED = ("stop", "install", "start", "health", "tokens", "acceptance", "benchmark", "soak")


@dataclass(frozen=True)
class Cell:
    """One fault (and perhaps a second one, during the undo or the recovery) at one instant."""

    action: str
    step: str
    moment: str
    fault: str
    second: str = ""
    dependents: bool = False  # other units go down with the service

    def __str__(self) -> str:
        text = f"{self.action} {self.step} {self.moment} {self.fault}"
        text += " with dependents" if self.dependents else ""
        return f"{text} then {self.second}" if self.second else text


def excluded(cell: Cell) -> str:
    """Why this cell makes no sense; empty for one that does."""
    if cell.step == "local" and cell.fault in ("kill-runner", "time-out"):
        return "`local` is a step of the controller: there is no runner yet, and it waits for nothing"
    if cell.moment == "after" and cell.fault == "time-out":
        return "a step that has its verdict has no clock"
    return ""


def grid() -> Iterator[Cell]:
    """Every combination, also those that are excluded."""
    for action, steps in STEPS.items():
        for step in steps:
            for moment in MOMENTS:
                for fault in FAULTS:
                    yield Cell(action, step, moment, fault)
            for fault in WITH_DEPENDENTS:
                yield Cell(action, step, "during", fault, dependents=True)


def singles() -> list[Cell]:
    """Every cell with one fault that applies."""
    return [cell for cell in grid() if not excluded(cell)]


def doubles(count: int, rng: random.Random) -> list[Cell]:
    """A sample of pairs: each second fault as often as the others."""
    firsts = [
        Cell(action, step, moment, fault)
        for action, steps in STEPS.items()
        for step in steps
        for moment in MOMENTS
        for fault in FIRST_OF_TWO
        if step in CHANGED and not excluded(Cell(action, step, moment, fault))
    ]
    picked = rng.sample(firsts, min(count, len(firsts)))
    return [Cell(c.action, c.step, c.moment, c.fault, SECOND[i % len(SECOND)]) for i, c in enumerate(picked)]


def short(rng: random.Random) -> list[Cell]:
    """Every fault once, at a random instant of a random step, one with dependents, and two doubles."""
    cells = []
    mine = [c for c in singles() if c.action == "rollout"]
    for fault in FAULTS:
        cells.append(rng.choice([c for c in mine if c.fault == fault and not c.dependents]))
    cells.append(rng.choice([c for c in mine if c.dependents and c.step in CHANGED]))
    return [*cells, *doubles(2, rng)]


def left_out() -> dict[str, list[Cell]]:
    """Reason -> the cells that are excluded for it."""
    found: dict[str, list[Cell]] = {}
    for cell in grid():
        if reason := excluded(cell):
            found.setdefault(reason, []).append(cell)
    return found


def shuffled(cells: Iterable[Cell], rng: random.Random) -> list[Cell]:
    """In an order that does not put equal faults side by side."""
    mixed = list(cells)
    rng.shuffle(mixed)
    return mixed
