"""What is shown: host output made safe, plain lines, JSON lines, the live view, the summary."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ddtree_deploy.console.live import LiveView
from ddtree_deploy.console.summary import fleet_lines, host_lines
from ddtree_deploy.console.view import JsonView, PlainView, line_of
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.rollout import of_end
from ddtree_deploy.text import safe, size, span

EVIL = "\x1b]0;owned\x07\x1b[2J[bold red]x[/] \u202egnp.exe\r\nline two"


def outcome(**more: Any) -> Outcome:
    base: dict[str, Any] = {"host": "ct1", "action": "rollout", "exit_code": 0, "run": "r1", "seconds": 75.0}
    return Outcome(**(base | more))


def test_control_characters_of_a_host_are_shown_not_obeyed() -> None:
    shown = safe(EVIL)
    assert "\x1b" not in shown and "\n" not in shown and "\r" not in shown and "\u202e" not in shown
    assert "\\x1b]0;owned\\x07" in shown and "\\u202e" in shown and "line two" in shown


@given(st.text())
def test_safe_text_is_one_printable_line(text: str) -> None:
    shown = safe(text)
    assert len(shown.splitlines()) <= 1
    assert shown.isprintable()


def test_long_text_is_cut() -> None:
    assert safe("x" * 5000, 10) == "x" * 10 + "..."


@pytest.mark.parametrize(("n", "words"), [(0, "0 B"), (999, "999 B"), (61_234, "61.2 kB"), (48e6, "48.0 MB")])
def test_sizes(n: float, words: str) -> None:
    assert size(n) == words


@pytest.mark.parametrize(
    ("n", "words"),
    [(0.42, "0.4 s"), (75, "75 s"), (725.4, "12 min 05 s"), (float("nan"), "?"), (float("inf"), "?")],
)
def test_spans(n: float, words: str) -> None:
    assert span(n) == words


def test_plain_lines_name_the_host_the_step_and_the_verdict() -> None:
    out = io.StringIO()
    view = PlainView(out)
    view.event(
        "ct1",
        "r1",
        {"e": "verdict", "step": "compile", "verdict": "pass", "reason": "4 files", "seconds": 1.5},
    )
    assert out.getvalue().split() == ["ct1", "compile", "pass", "1.5", "s", "4", "files"]


def test_plain_progress_does_not_flood_a_log() -> None:
    out = io.StringIO()
    view = PlainView(out)
    for i in range(1000):
        view.event("ct1", "r1", {"e": "progress", "step": "start", "text": f"line {i}"})
        view.event("ct1", "r1", {"e": "progress", "step": "other", "text": f"line {i}"})
    assert len(out.getvalue().splitlines()) == 2


@pytest.mark.parametrize("kind", ["progress", "verdict", "output", "undo", "noise", "note", "disconnected"])
def test_every_plain_line_is_safe(kind: str) -> None:
    event = {
        "e": kind,
        "step": EVIL,
        "text": EVIL,
        "reason": EVIL,
        "tail": EVIL,
        "rc": 1,
        "phase": EVIL,
        "what": EVIL,
    }
    line = line_of(event)
    assert line is not None and "\x1b" not in line and "\r" not in line and len(line.splitlines()) == 1


def test_json_lines_carry_the_event_and_no_raw_control_character() -> None:
    out = io.StringIO()
    JsonView(out).event("ct1", "r1", {"n": 3, "t": 5.0, "e": "progress", "step": "start", "text": EVIL})
    (line,) = out.getvalue().splitlines()
    assert json.loads(line) == {
        "host": "ct1", "run": "r1", "n": 3, "t": 5.0, "e": "progress", "step": "start", "text": EVIL,
    }  # fmt: skip
    assert line.isascii() and line.isprintable()


def live(width: int = 100) -> tuple[LiveView, io.StringIO]:
    out = io.StringIO()
    return LiveView(Console(file=out, force_terminal=True, width=width, markup=False, highlight=False)), out


def test_the_live_view_takes_markup_and_escapes_of_a_host_as_text() -> None:
    view, out = live()
    view.event("ct1", "r1", {"e": "plan", "steps": ["start"], "action": "rollout"})
    view.event("ct1", "r1", {"e": "start", "step": "start"})
    view.event("ct1", "r1", {"e": "progress", "step": "start", "text": EVIL})
    view.event(
        "ct1", "r1", {"e": "verdict", "step": "start", "verdict": "pass", "reason": EVIL, "seconds": 1}
    )
    view.close()
    assert "[bold red]x[/]" in out.getvalue() and "\\x1b]0;owned" in out.getvalue()
    assert "\x1b]0;owned" not in out.getvalue() and "\x1b[2J[" not in out.getvalue()


def test_the_live_view_keeps_every_step_and_its_verdict_on_the_screen() -> None:
    view, out = live()
    view.event("ct1", "r1", {"e": "plan", "steps": ["lock", "start"], "action": "rollout"})
    for step, verdict in (("lock", "pass"), ("start", "fail")):
        view.event("ct1", "r1", {"e": "start", "step": step})
        view.event(
            "ct1", "r1", {"e": "verdict", "step": step, "verdict": verdict, "reason": "why", "seconds": 2}
        )
    for phase in ("start", "done"):
        view.event("ct1", "r1", {"e": "undo", "step": "stop", "what": "undo", "phase": phase})
    view.outcome(outcome(exit_code=1, step="start", state="as before"))
    text = out.getvalue()
    assert "✔" in text and "✘" in text and "undo stop" in text and "↺" in text
    assert "exit    1: a gate failed; the host is as it was before" in text


def test_the_summary_shows_before_and_after() -> None:
    results = {
        "baseline": {
            "sample": {"steps_per_token": 0.5, "accept_length": 2.0},
            "bench": {"figures": {"output_tokens_per_s": 100.0, "ttft_ms": 12.0, "tpot_ms": 9.5}},
        },
        "benchmark": {
            "sample": {"steps_per_token": 0.25, "accept_length": 4.0},
            "after": {"figures": {"output_tokens_per_s": 180.0, "ttft_ms": 13.0, "tpot_ms": 5.25}},
        },
    }
    lines = host_lines(
        outcome(results=results, execs=2, sent=61_234, received=900, state="new release serving")
    )
    rows = {line[:24].strip(): line[24:].split() for line in lines}
    assert rows["verify steps per token"] == ["0.5000", "0.2500"]
    assert rows["accept length"] == ["2.000", "4.000"]
    assert rows["output tokens/s"] == ["100.0", "180.0"]
    assert rows["TTFT, ms"] == ["12.0", "13.0"] and rows["TPOT, ms"] == ["9.50", "5.25"]
    assert "  wire    2 execs, 61.2 kB sent, 900 B received" in lines


def test_the_summary_says_how_long_users_were_without_service() -> None:
    assert host_lines(outcome(down_s=84.2))[0] == "ct1: rollout passed (75 s, down 84 s)"
    assert host_lines(outcome())[0] == "ct1: rollout passed (75 s)"


def test_the_outcome_takes_it_from_the_end_and_does_without_it() -> None:
    end = {"e": "end", "exit": 0, "verdict": "pass", "state": "new release serving"}
    assert of_end("ct1", "rollout", {**end, "down_s": 84.2}).to_dict()["down_s"] == 84.2
    assert of_end("ct1", "rollout", end).to_dict()["down_s"] is None


def test_without_measurements_there_is_no_table() -> None:
    assert not any("before" in line for line in host_lines(outcome(results={"baseline": {"sample": None}})))


def test_a_figure_that_was_not_measured_is_a_dash() -> None:
    results = {"baseline": {"sample": {"steps_per_token": 0.5, "accept_length": None}, "bench": None}}
    (row,) = [line for line in host_lines(outcome(results=results)) if "steps per token" in line]
    assert row.split()[-2:] == ["0.5000", "-"]


def test_a_rolled_back_run_says_so_and_is_no_success() -> None:
    lines = host_lines(
        outcome(
            exit_code=1, verdict="fail", step="health", state="as before", reason="hung; rolled back: start"
        )
    )
    assert lines[0].startswith("ct1: rollout failed at health")
    assert any("rolled back" in line for line in lines) and any("as before" in line for line in lines)


def test_hosts_that_were_not_begun_are_named() -> None:
    (line,) = fleet_lines([outcome(), outcome(host="ct2", exit_code=4)], ["ct3"])
    assert line.startswith("1 of 3 hosts passed; not begun after the failure: ct3; exit 4")


def test_one_host_needs_no_fleet_line() -> None:
    assert fleet_lines([outcome()], []) == []
