"""A host that goes down in the middle of a run: nothing is undone any more, nothing wrong is said."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.programs import bounded, systemctl
from ddtree_deploy.onhost.recovery import deferral, orphans
from ddtree_deploy.onhost.run import follow
from ddtree_deploy.onhost.state import layout, releases
from ddtree_deploy.onhost.state.journal import read
from ddtree_deploy.onhost.steps import unlock
from ddtree_deploy.onhost.venv import tree

from .test_crash import WANTED, Site

pytestmark = pytest.mark.unit


@pytest.fixture
def deferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Site, Path, dict[str, str]]:
    """A run whose last step fails because its host goes down. (site, run folder, tree before)."""
    site = Site(tmp_path)
    before = site.snapshot()
    plan = site.plan(WANTED)
    with monkeypatch.context() as down:
        down.setattr(deferral, "needed", lambda ctx: True)
        down.setattr(unlock, "do", _fails)
        assert site.run(plan) == deferral.EXIT
    return site, site.site_dir / "runs" / plan.run, before


def _fails(ctx: Any) -> str:
    raise StepFailed("the service did not stay up")


def test_the_run_is_left_as_it_is_and_is_an_orphan(deferred: tuple[Site, Path, dict[str, str]]) -> None:
    site, run_dir, before = deferred
    events, _ = read(run_dir / layout.JOURNAL)
    assert events[-1]["e"] == "deferred" and "undone when it boots" in events[-1]["text"]
    assert not [e for e in events if e["e"] in ("end", "undo")]
    assert tree.changes(before, site.snapshot()) != []
    assert orphans.orphans(site.site_dir) == [run_dir.name]


def test_the_recovery_undoes_and_does_not_blame_the_payload(
    deferred: tuple[Site, Path, dict[str, str]],
) -> None:
    site, run_dir, before = deferred
    assert site.recover(run_dir.name) == 1
    end = read(run_dir / layout.JOURNAL)[0][-1]
    assert (end["exit"], end["state"]) == (1, "as before")
    assert end["reason"].startswith("the host went down at step unlock; rolled back: install")
    assert tree.changes(before, site.snapshot()) == []
    assert [line["verdict"] for line in releases.lines(site.site_dir)] == ["rolled-back"]


def test_a_follower_says_nothing_of_a_dead_runner_before_the_boot(
    deferred: tuple[Site, Path, dict[str, str]], capfd: Any
) -> None:
    _, run_dir, _ = deferred
    assert follow._ended_or_lost(run_dir, 0.0) == deferral.EXIT
    assert capfd.readouterr().out == ""


def test_after_the_boot_a_follower_waits_for_the_guard_and_not_for_ever(
    deferred: tuple[Site, Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    _, run_dir, _ = deferred
    # As a run of the boot before that had put up its guard.
    journal = run_dir / layout.JOURNAL
    lines = b'{"n":1,"t":1.0,"e":"run","boot_id":"old"}\n{"n":2,"t":1.0,"e":"guard","unit":"x"}\n'
    journal.write_bytes(lines + journal.read_bytes())
    monkeypatch.setattr(layout, "boot_id", lambda: "new")
    assert follow._ended_or_lost(run_dir, 0.0) is None
    assert follow._ended_or_lost(run_dir, follow.GUARD_S) == follow.LOST_EXIT
    assert "the host went down at step unlock" in capfd.readouterr().out


def test_only_a_shutdown_before_any_undo_takes_the_verdict_from_the_gates() -> None:
    run, fail, undo, down = ({"e": kind} for kind in ("run", "verdict", "undo", "deferred"))
    assert deferral.cut_short([run, fail, down])
    assert not deferral.cut_short([run, fail, undo, down])
    assert not deferral.cut_short([run, fail])


@pytest.mark.parametrize(
    ("said", "down"),
    [
        (["running"], False),
        (["stopping"], True),
        (["unknown", "offline", "stopping"], True),
        (["", "running"], False),
    ],
)
def test_a_manager_that_does_not_answer_is_asked_again(
    said: list[str], down: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It executes itself anew, or is being replaced by the program that ends all processes."""
    answers = iter(said)
    monkeypatch.setattr(systemctl, "BOOTED", tmp_path)
    monkeypatch.setattr(
        bounded, "call", lambda argv, **more: subprocess.CompletedProcess(argv, 1, f"{next(answers)}\n", "")
    )
    assert systemctl.stopping() is down
    assert not list(answers)


def test_without_systemd_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemctl, "BOOTED", tmp_path / "none")
    monkeypatch.setattr(bounded, "call", lambda argv, **more: pytest.fail("asked"))
    assert not systemctl.stopping()
