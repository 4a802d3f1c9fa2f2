"""What is known of a host becomes an exit code in one place."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy import cli, errors, streams
from ddtree_deploy.commands import inputs
from ddtree_deploy.console import JsonView, PlainView
from ddtree_deploy.errors import ContactLost, DeployError, GateFailed
from ddtree_deploy.running import sight
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.outcome import MEANING, Outcome
from ddtree_deploy.running.rollout import of_end
from ddtree_deploy.running.sight import Sight
from ddtree_deploy.running.view import Steady

OURS = [
    RuntimeError("odd"),
    BrokenPipeError(32, "Broken pipe"),
    OSError(28, "No space left on device"),
    UnicodeEncodeError("ascii", "\u2019", 0, 1, "ordinal not in range(128)"),
    ValueError("I/O operation on closed file"),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    AssertionError(),
    SystemExit(1),
    SystemExit(0),
    GeneratorExit(),
]
TOLD = [kind("x") for kind in (*DeployError.__subclasses__(), errors.HostKeyError, DeployError)]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sight.forget()


def settled(error: BaseException, *, begun: bool) -> Outcome:
    seen = Sight()

    def work() -> Outcome:
        if begun:
            seen.begin()
        raise error

    return seen.settle("ct1", "rollout", Interrupts(), work)


@pytest.mark.parametrize("error", [*OURS, *TOLD, KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_case_35_no_error_is_a_verdict_on_a_run_that_goes_on(error: BaseException) -> None:
    outcome = settled(error, begun=True)
    assert outcome.exit_code == 8
    if not isinstance(error, ContactLost):
        assert "the host goes on by itself" in outcome.error and "attach ct1" in outcome.error
    assert sight.exit_code(1) == sight.exit_code(0) == 8


@pytest.mark.parametrize("error", TOLD, ids=lambda e: type(e).__name__)
def test_before_anything_was_begun_an_error_has_its_own_code(error: DeployError) -> None:
    assert settled(error, begun=False).exit_code == error.exit_code


@pytest.mark.parametrize("error", OURS, ids=lambda e: type(e).__name__)
def test_before_anything_was_begun_an_error_of_our_own_is_a_bug(error: BaseException) -> None:
    outcome = settled(error, begun=False)
    assert outcome.exit_code == 1 and "this is a bug" in outcome.error and "ct1: " in outcome.error


def test_a_bug_whose_traceback_cannot_be_kept_is_still_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    assert "could not be kept" in settled(RuntimeError("odd"), begun=True).error


def test_what_the_host_said_stands_whatever_comes_after_it() -> None:
    for code in MEANING:
        sight.forget()
        seen = Sight()
        seen.begin()
        seen.settle("ct1", "rollout", Interrupts(), lambda code=code: Outcome("ct1", "rollout", code))
        assert sight.exit_code(1) == code


def test_a_fleet_of_which_one_is_not_known_is_not_known() -> None:
    for code in (0, 1):
        Sight().settle("a", "rollout", Interrupts(), lambda code=code: Outcome("a", "rollout", code))
    settled(RuntimeError("odd"), begun=True)
    assert sight.exit_code(1) == 8


def test_a_host_that_said_that_it_has_not_begun_is_as_before() -> None:
    seen = Sight()

    def work() -> Outcome:
        seen.begin()
        seen.end()
        raise GateFailed("no space")

    assert seen.settle("ct1", "rollout", Interrupts(), work).exit_code == 1


def test_after_it_signals_are_only_counted() -> None:
    with Interrupts() as interrupts:
        Sight().settle("ct1", "rollout", interrupts, lambda: Outcome("ct1", "rollout", 0))
        assert interrupts.held


@pytest.mark.parametrize("told", [77, 256, -1, None, "0", [0], 0.5])
def test_an_exit_code_that_no_host_of_ours_says_is_unknown(told: Any) -> None:
    """256 would leave this process as 0: passed."""
    seen = Sight()

    def work() -> Outcome:
        seen.begin()
        return of_end("ct1", "rollout", {"e": "end", "exit": told, "verdict": "pass", "state": "x"})

    assert seen.settle("ct1", "rollout", Interrupts(), work).exit_code == 8


# ---- the command line ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [*OURS, KeyboardInterrupt(), EOFError()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("host_said", [0, 1, 3, 8, None])
def test_an_error_of_a_command_after_its_hosts_have_spoken_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, host_said: int | None
) -> None:
    def command(*_: object, **__: object) -> int:
        seen = Sight()
        seen.begin()
        if host_said is not None:
            seen.settle("ct1", "sweep", Interrupts(), lambda: Outcome("ct1", "sweep", host_said))
        raise error

    monkeypatch.setattr(inputs, "load_hosts", command)
    assert cli.run(["status"]) == (8 if host_said is None else host_said)


@pytest.mark.parametrize(("host_said", "own", "code"), [(None, 0, 1), (None, 6, 6), (0, 0, 0), (3, 3, 3)])
def test_lost_output_fails_a_command_that_only_reads(
    monkeypatch: pytest.MonkeyPatch, host_said: int | None, own: int, code: int
) -> None:
    monkeypatch.setattr(streams, "lost", lambda: "No space left on device")
    if host_said is not None:
        Sight().settle("ct1", "rollout", Interrupts(), lambda: Outcome("ct1", "rollout", host_said))
    assert cli.finished(own) == code


# ---- a view with an error of ours ------------------------------------------------------------------------


ODD = [
    {"e": "verdict", "step": "x", "verdict": "pass", "seconds": "soon"},
    {"e": "verdict", "step": {}, "seconds": None},
    {"e": "output", "rc": 1, "tail": 5},
    {"e": "plan", "steps": 5},
    {"e": "recovering"},
    {"e": []},
]


@pytest.mark.parametrize("made", [PlainView, JsonView])
def test_events_that_cannot_be_shown_are_told_once_and_end_nothing(
    made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    view = Steady(made(out))
    for event in ODD * 3:
        view.event("ct1", "r1", event)
    view.event("ct1", "r1", {"e": "verdict", "step": "lock", "verdict": "pass", "seconds": 1.0})
    assert "lock" in out.getvalue().splitlines()[-1]
    assert len(capsys.readouterr().err.splitlines()) <= 1
    view.outcome(Outcome("ct1", "rollout", 0))


def test_a_view_whose_stream_is_closed_ends_nothing() -> None:
    out = io.StringIO()
    view = Steady(PlainView(out))
    out.close()
    view.event("ct1", "r1", {"e": "start", "step": "lock"})
    view.outcome(Outcome("ct1", "rollout", 0))
    view.fleet([Outcome("ct1", "rollout", 0)] * 2, [])
    view.close()
