"""The matrix as text."""

from __future__ import annotations

from tests.lab.matrix.cells import FAULTS, MOMENTS, STEPS, Cell, excluded
from tests.lab.matrix.cells import left_out as _left_out
from tests.lab.matrix.trial import Trial

SHORT = dict(
    zip(
        FAULTS,
        ("killR", "killC", "cut", "cut5", "freez", "power", "reboo", "disk", "ro", "time", "INT", "TERM"),
        strict=True,
    )
)


def render(trials: list[Trial]) -> str:
    """One row a step and moment, one column a fault: `.` survived, `F` not, `-` excluded, blank not run."""
    by_cell = {t.cell: t for t in trials}
    lines = ["", f"{'':28}" + " ".join(f"{SHORT[f]:5}" for f in FAULTS)]
    for action, steps in STEPS.items():
        for step in steps:
            for moment in MOMENTS:
                marks = [_mark(Cell(action, step, moment, fault), by_cell) for fault in FAULTS]
                if any(m not in ("-", "") for m in marks):
                    lines.append(f"{action:9}{step:11}{moment:8}" + " ".join(f"{m:5}" for m in marks))
    beside = [t for t in trials if t.cell.dependents]
    if beside:
        lines += ["", f"with dependents: {sum(t.survived for t in beside)}/{len(beside)} survived"]
    doubles = [t for t in trials if t.cell.second and t.struck]
    if doubles:
        lines += ["", f"two faults: {sum(t.survived for t in doubles)}/{len(doubles)} survived"]
    missed = [t for t in trials if not t.struck]
    if missed:
        lines.append(
            f"two faults, of which the second found nothing to strike: {len(missed)}, not counted; "
            f"the first was survived by {sum(t.survived for t in missed)}"
        )
    failures = [t for t in trials if not t.survived]
    if failures:
        lines += ["", "not survived:"]
        for trial in failures:
            lines.append(f"  {trial.line()}")
            lines += [f"      {problem[:300]}" for problem in trial.problems[:3]]
    return "\n".join(lines)


def _mark(cell: Cell, by_cell: dict[Cell, Trial]) -> str:
    if excluded(cell):
        return "-"
    trial = by_cell.get(cell)
    return "" if trial is None else "." if trial.survived else "F"


def left_out() -> str:
    """What is not run, and why."""
    lines = [""]
    for reason, cells in _left_out().items():
        steps = sorted({f"{c.action} {c.step}" for c in cells})
        lines.append(f"left out, {len(cells)} cells: {reason} ({', '.join(steps)})")
    return "\n".join(lines)
