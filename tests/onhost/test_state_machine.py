"""Any sequence of rollouts, rollbacks, crashes, torn journals and recoveries leaves a host before or after.

The model is small: a stack of trees, one for each release that is live or was replaced. The runner, its steps
and the recovery are the real ones, on a temp tree, with a disk that stops at a change that hypothesis picks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ddtree_deploy.onhost.recovery import orphans
from ddtree_deploy.onhost.state import layout, releases
from ddtree_deploy.onhost.state.journal import read
from ddtree_deploy.onhost.venv import bytecode, tree
from ddtree_deploy.onhost.wire.protocol import Plan

from .test_crash import WANTED, Crash, Failing, Site, disk

WISHES = st.dictionaries(
    st.sampled_from(sorted(WANTED)), st.sampled_from([None, "x = 1\n", "x = 2\n"]), min_size=1
)
NEVER = 10_000
WHEN = st.one_of(st.just(NEVER), st.integers(1, 60))  # the change of the disk at which the process dies


class AnySequence(RuleBasedStateMachine):
    """What is to be true is said by `stands`; what may be half-done by `dead`."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda fd: None)  # a killed process loses nothing that it has written
        self.folder = Path(tempfile.mkdtemp(prefix="ddtree-machine-"))
        self.site = Site(self.folder)
        self.trees = [self.site.snapshot()]  # the pristine one, then one a live release
        self.live: list[str] = []  # runs of the live releases, oldest first
        self.dead = ""  # a run that has crashed and was not recovered yet
        self.goal: tuple[Plan, dict[str, str | None]] | None = None

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)

    @initialize(wanted=WISHES)
    def first(self, wanted: dict[str, str | None]) -> None:
        self._run(self.site.plan(wanted), wanted, NEVER, after=False)

    @precondition(lambda self: not self.dead)
    @rule(wanted=WISHES, crash=WHEN, after=st.booleans())
    def rollout(self, wanted: dict[str, str | None], crash: int, after: bool) -> None:
        self._run(self.site.plan(wanted), wanted, crash, after=after)

    @precondition(lambda self: not self.dead and self.live)
    @rule(crash=WHEN, after=st.booleans())
    def rollback(self, crash: int, after: bool) -> None:
        self._run(self.site.back(self.live[-1]), {}, crash, after=after)

    @precondition(lambda self: self.dead)
    @rule(crash=WHEN, after=st.booleans())
    def recovery(self, crash: int, after: bool) -> None:
        with disk(self.patch, Failing(crash, after)), contextlib.suppress(Crash):
            assert self.site.recover(self.dead) in (0, 1)
        self._settle()

    @precondition(lambda self: self.dead)
    @rule(rest=st.binary(max_size=40).filter(lambda b: b"\n" not in b))
    def torn_line(self, rest: bytes) -> None:
        """Power goes while a line is written."""
        with (self.site.site_dir / "runs" / self.dead / layout.JOURNAL).open("ab") as journal:
            journal.write(rest)

    @invariant()
    def before_or_after(self) -> None:
        if self.dead:
            return
        assert tree.changes(self.trees[-1], self.site.snapshot()) == []
        live: Any = layout.read_json(self.site.site_dir / "installed.json")
        assert (live["release"] if live else None) == (self.live[-1] if self.live else None)
        assert self.site.leftovers() == []
        assert bytecode.stale([str(p) for p in self.site.site.rglob("*.py")]) == []
        assert orphans.orphans(self.site.site_dir) == []

    def _run(self, plan: Plan, wanted: dict[str, str | None], crash: int, *, after: bool) -> None:
        self.goal, self.dead = (plan, wanted), plan.run
        with disk(self.patch, Failing(crash, after)), contextlib.suppress(Crash):
            self.site.run(plan)
        self._settle()

    def _settle(self) -> None:
        """Take the run's own word for how it ended, and what that means for the model."""
        assert self.goal is not None
        plan, wanted = self.goal
        run_dir = self.site.site_dir / "runs" / plan.run
        if releases.unfinished(run_dir):
            return
        self.dead = ""
        ends = [e for e in read(run_dir / layout.JOURNAL)[0] if e["e"] == "end"]
        if not ends or ends[-1]["verdict"] != "pass":
            return
        if plan.action == "rollback":
            self.trees.pop()
            self.live.pop()
            return
        for rel, content in wanted.items():
            path = self.site.package / rel
            assert (path.read_text() if path.exists() else None) == content
        moved = {c[1:] for c in tree.changes(self.trees[-1], self.site.snapshot())}
        folders = {f"pkg/{Path(rel).parent}" for rel in WANTED} | {"pkg/new", "pkg"}
        assert moved <= {f"pkg/{rel}" for rel in wanted} | {f"pkg/{rel}c" for rel in wanted} | folders
        self.trees.append(self.site.snapshot())
        self.live.append(plan.run)


AnySequence.TestCase.settings = settings(max_examples=15, stateful_step_count=12)
TestAnySequenceEndsBeforeOrAfter = AnySequence.TestCase


def test_the_machine_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an undo that does nothing, the same sequence is reported."""
    monkeypatch.setattr("ddtree_deploy.onhost.run.undo.intents_by_step", lambda events: {})
    monkeypatch.setattr("ddtree_deploy.onhost.run.runner.intents_by_step", lambda events: {})
    machine = AnySequence()
    try:
        machine.first({"a.py": "x = 1\n"})
        machine.before_or_after()
        for crash in range(5, 40):  # somewhere in between the files are half in place
            machine.rollout({"a.py": "x = 2\n", "d.py": None, "new/f.txt": "x = 1\n"}, crash, False)
            if machine.dead:
                machine.recovery(NEVER, False)
            if half_done(machine):
                return
    finally:
        machine.teardown()
    pytest.fail("nothing was noticed")


def half_done(machine: AnySequence) -> bool:
    """The invariant alone may fail here, not what leads to it."""
    try:
        machine.before_or_after()
    except AssertionError:
        return True
    return False
