"""An undo goes on: with a full disk, and for as long as it takes, however short the step's own time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost import steps
from ddtree_deploy.onhost.context import Context
from ddtree_deploy.onhost.run import undo
from ddtree_deploy.onhost.state.journal import Journal
from ddtree_deploy.onhost.wire.protocol import StepSpec

from .test_parts import plan


class Step:
    """A step whose undo only says what it was given."""

    def __init__(self) -> None:
        self.undone: list[dict[str, Any]] = []
        self.ctx: list[tuple[float, float]] = []

    def undo(self, ctx: Context, intents: list[dict[str, Any]]) -> None:
        ctx.check()
        self.undone += intents
        self.ctx.append((ctx.step.timeout_s, ctx.remaining()))


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    made = Step()
    monkeypatch.setattr(steps, "load", lambda kind: made)
    return made


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    short = StepSpec("install", "install", 0.001)
    return Context(plan(steps=[short]), tmp_path, Journal(tmp_path / "journal.jsonl"), short)


def test_a_full_disk_does_not_stop_an_undo(ctx: Context, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert undo.undo_all(ctx, {"install": [{"path": "x"}]}) == []
    assert step.undone == [{"path": "x"}]


def test_an_undo_has_an_hour_of_its_own_and_cannot_be_interrupted(ctx: Context, step: Step) -> None:
    ctx.stop_event.set()
    assert undo.undo_all(ctx, {"install": [{"path": "x"}]}) == []
    ((timeout, left),) = step.ctx
    assert timeout == undo.UNDO_S == 3600.0
    assert timeout - 60 < left <= timeout
