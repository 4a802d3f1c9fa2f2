"""The live view as a terminal of each width shows it: the pictures in live_view/ are what people see.

`python -m tests.unit.test_live_pictures` draws them anew, to be looked at.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ddtree_deploy.console import live
from ddtree_deploy.console.live import LiveView

PICTURES = Path(__file__).parent / "live_view"
WIDTHS = (40, 80, 100, 120, 160)
LONG = (
    "accept length 1.20 against 3.41 before: 0.35 x, at least 0.95 is wanted; the tree “accepts” 日本語 too"
)
STEPS = ["local", "lock", "preflight", "backup", "tokens", "acceptance", "benchmark", "soak", "unlock"]
VERDICTS = [
    ("local", "pass", 0.4, "12 files compile, 14 digests match"),
    ("lock", "pass", 0.02, "ours"),
    ("preflight", "skipped", 1.2, "no GPU"),
    (
        "backup",
        "pass",
        75.0,
        "/var/lib/ddtree-deploy/sites/0123456789abcdef/runs/20261201T050000-abcd/backup",
    ),
    ("tokens", "inconclusive", 725.0, LONG),
    ("acceptance", "fail", 31.0, LONG),
]
WORDS = {
    **{step: verdict for step, verdict, _, _ in VERDICTS},
    **{"undo install": "undone", "check stop": "checked", "undo stop": "fail", "check install": "running"},
}
UNDONE = [("undo", "stop", "failed"), ("undo", "install", "done"), ("check", "stop", "done")]


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def screen(width: int, encoding: str = "utf-8", *, steps: list[str] = STEPS, height: int = 25) -> list[str]:
    """The picture of a failing run in the midst of its undo."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    console = Console(
        file=out, width=width, height=height, color_system=None, markup=False, highlight=False, emoji=False
    )
    view = LiveView(console)
    view._live = object()  # type: ignore[assignment]  as drawn while it runs, but by us
    view.event("ct129", "20261201T050000-abcdef", {"e": "plan", "steps": steps, "action": "rollout"})
    for step, verdict, seconds, reason in VERDICTS:
        if step in steps:
            view.event("ct129", "r", {"e": "start", "step": step})
            told: dict[str, Any] = {"verdict": verdict, "seconds": seconds, "reason": reason}
            view.event("ct129", "r", {"e": "verdict", "step": step, **told})
    for what, step, phase in [*UNDONE, ("check", "install", "")]:
        event = {"e": "undo", "what": what, "step": step}
        view.event("ct129", "r", {**event, "phase": "start"})
        if phase:
            view.event("ct129", "r", {**event, "phase": phase, "reason": "" if phase == "done" else LONG})
    console.print(view._picture())
    out.flush()
    return out.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "time", Clock())


@pytest.mark.parametrize("width", WIDTHS)
def test_case_36_the_live_view_is_what_its_picture_shows(width: int) -> None:
    assert screen(width) == (PICTURES / f"{width}.txt").read_text().splitlines()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("width", [*range(30, 61), *range(64, 200, 8), 200])
def test_case_36_step_and_verdict_are_whole_without_colour_at_any_width(width: int, encoding: str) -> None:
    lines = screen(width, encoding)
    assert max(map(cell_len, lines)) <= width
    marks = {}
    for step, word in WORDS.items():
        (line,) = [line for line in lines if line[2:].startswith(f"{step} ")]
        assert line[2 + len(step) :].split()[0] == word, line
        marks[word] = line[0]
    for step in ("benchmark", "soak", "unlock"):  # not begun: no word
        assert [line.strip() for line in lines].count(step) == 1
    assert (marks["pass"], marks["fail"]) == (("✔", "✘") if encoding == "utf-8" else ("+", "x"))


def test_case_36_a_name_that_is_longer_than_the_screen_is_folded_not_cut() -> None:
    name = "a-step-of-my-own-with-a-name-that-tells-it-all"
    lines = screen(40, steps=["lock", name])
    at = next(i for i, line in enumerate(lines) if line.startswith("  a-step"))
    assert "".join(lines[at : at + 2]).replace(" ", "") == name


@pytest.mark.parametrize("height", [6, 8, 24])
def test_case_36_on_a_low_screen_the_step_that_runs_is_seen(height: int) -> None:
    lines = screen(80, height=height)
    assert len(lines) <= height
    assert [line for line in lines if "check install" in line and "running" in line]


def test_the_last_picture_has_every_step_also_on_a_low_screen() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=80, height=6, markup=False))
    steps = [f"step{i}" for i in range(20)]
    view.event("ct1", "r1", {"e": "plan", "steps": steps, "action": "rollout"})
    for step in steps:
        view.event("ct1", "r1", {"e": "start", "step": step})
        view.event("ct1", "r1", {"e": "verdict", "step": step, "verdict": "pass", "reason": "", "seconds": 1})
    view.close()
    last = out.getvalue().rpartition("rollout r1")[2]
    assert [step for step in steps if step in last] == steps


if __name__ == "__main__":
    live.time = Clock()  # type: ignore[assignment]
    for columns in WIDTHS:
        (PICTURES / f"{columns}.txt").write_text("\n".join(screen(columns)) + "\n")
