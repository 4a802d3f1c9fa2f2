"""The time without service: begun with the last answer before a stop, over with the first after the start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_deploy.onhost.context import Context
from ddtree_deploy.onhost.judge.verdict import Verdict
from ddtree_deploy.onhost.run import runner
from ddtree_deploy.onhost.service import downtime, ready
from ddtree_deploy.onhost.service.sglang_api import Endpoint, HttpError
from ddtree_deploy.onhost.state.journal import Journal, read

from .serving_support import Lab, do, lab_at, launch, of, undo


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        yield made


def told(ctx: Context, kind: str) -> list[dict[str, Any]]:
    return [e for e in read(ctx.journal.path)[0] if e["e"] == kind]


def stopped(lab: Lab, *more: str) -> Context:
    """A run that has stopped a service that somebody had started, and that loads for 0.4 s."""
    lab.start_by_hand()
    lab.mood(load_s=0.4)
    ctx = lab.context(lab.service("adopted", launch=launch(lab)), "stop", "start", *more)
    of(ctx).record(ctx.backup_dir)
    do(ctx, "stop")
    of(ctx).apply_launch(ctx)
    return ctx


def test_it_lasts_from_the_last_answer_of_the_drain_to_the_first_tokens(lab: Lab) -> None:
    begun = time.time()
    ctx = stopped(lab)
    (down,) = told(ctx, "down")
    assert (down["step"], told(ctx, "up")) == ("stop", [])
    assert round(begun, 3) <= down["since"] <= down["t"]
    do(ctx, "start")
    (up,) = told(ctx, "up")
    assert up["step"] == "start" and 0.4 <= up["down_s"] <= time.time() - begun
    assert downtime.total(read(ctx.journal.path)[0]) == up["down_s"]


def test_an_undo_that_starts_the_old_service_again_tells_it_in_the_end(lab: Lab) -> None:
    ctx = stopped(lab)
    assert runner.settle(ctx, Verdict("fail", "why", step="smoke")) == 1
    (up,), (end,) = told(ctx, "up"), told(ctx, "end")
    assert up["step"] == "stop" and up["down_s"] >= 0.4
    assert end["down_s"] == up["down_s"]


def test_while_the_new_one_served_nobody_was_without_service(lab: Lab) -> None:
    ctx = stopped(lab, "health")
    do(ctx, "start")
    do(ctx, "health")
    health = told(ctx, "progress")[-1]
    assert undo(ctx) == []
    (first, second), ups = told(ctx, "down"), told(ctx, "up")
    assert first["since"] < ups[0]["t"] < second["since"]
    assert second["since"] == pytest.approx(health["t"], abs=0.5)
    assert downtime.total(read(ctx.journal.path)[0]) == pytest.approx(sum(e["down_s"] for e in ups))


def test_a_recovery_counts_from_the_stop_of_the_run_that_died(lab: Lab) -> None:
    ctx = stopped(lab)
    ctx.journal.close()
    again = Context(ctx.plan, ctx.run_dir, Journal(ctx.journal.path), ctx.step, ctx.deadline)
    assert undo(again) == []
    (down,), (up,) = told(again, "down"), told(again, "up")
    assert up["down_s"] == pytest.approx(up["t"] - down["since"], abs=0.05)


def test_a_service_that_stays_down_and_one_that_was_not_stopped_have_none(lab: Lab) -> None:
    ctx = stopped(lab)
    assert downtime.total(read(ctx.journal.path)[0]) is None
    other = lab.context(None)
    runner.settle(other, Verdict("fail", "why", step="start"))
    assert "down_s" not in told(other, "end")[0]


def test_while_nobody_listens_the_pauses_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt takes 10 s here: the port opens after three, then the model warms up."""
    kinds, now, waited = ["refused"] * 3 + ["status"] * 2, [0.0], list[float]()

    def generate(*_: Any, **__: Any) -> Any:
        now[0] += 10.0
        if kinds:
            raise HttpError(kinds.pop(0), "not yet")
        return SimpleNamespace(tokens=(1,))

    def pause(seconds: float, *_: float) -> float:
        waited.append(seconds)
        return 0.0

    monkeypatch.setattr(ready, "generate", generate)
    monkeypatch.setattr(ready, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(ready.proc, "pause", pause)
    assert ready.Prober(Endpoint("http://127.0.0.1:1"), "prompt").answered.wait(10)
    assert waited == [0.0, 0.0, 0.0, 10.0, 20.0]


def test_a_journal_of_before_has_none() -> None:
    assert downtime.total([{"e": "run"}, {"e": "end", "exit": 0}]) is None
