"""What `make faults` promises, as data: its cells, when an instant is reached, mutations that fit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.inputs import playbook
from ddtree_deploy.running.zipapp import SOURCE
from tests.lab.matrix import cells
from tests.lab.matrix.instant import Instant, reached
from tests.lab.matrix.mutations import MUTATIONS, Mutation

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("action", ["rollout", "rollback"])
def test_the_matrix_has_every_step_of_the_shipped_playbook(action: str) -> None:
    book = playbook.load(REPOSITORY / f"playbooks/{action}.yaml")
    assert cells.STEPS[action] == tuple(step.name for step in book.steps)


def test_every_combination_is_run_or_left_out_with_a_reason() -> None:
    whole = list(cells.grid())
    left_out = [cell for found in cells.left_out().values() for cell in found]
    assert sorted(map(str, [*cells.singles(), *left_out])) == sorted(map(str, whole))
    assert len(cells.singles()) >= 400
    assert all(reason for reason in cells.left_out())


@pytest.mark.parametrize(("action", "step"), [(a, s) for a, steps in cells.STEPS.items() for s in steps])
def test_each_step_has_two_cells_on_a_host_with_dependents(action: str, step: str) -> None:
    mine = [c for c in cells.grid() if c.dependents and (c.action, c.step) == (action, step)]
    assert len(mine) == 2
    assert [c for c in mine if cells.excluded(c)] == [c for c in mine if c.step == "local"][:1]


def test_the_short_cut_has_every_fault() -> None:
    chosen = cells.short(random.Random(1))
    assert {cell.fault for cell in chosen} >= set(cells.FAULTS)
    assert any(cell.second for cell in chosen) and any(cell.dependents for cell in chosen)


def test_a_sample_of_doubles_has_every_second_fault() -> None:
    assert {cell.second for cell in cells.doubles(48, random.Random(1))} == set(cells.SECOND)


START = {"e": "start", "step": "install"}
INTENT = {"e": "intent", "step": "install"}
VERDICT = {"e": "verdict", "step": "install"}
UNDO = {"e": "undo", "step": "install", "phase": "start"}


@pytest.mark.parametrize(
    ("at", "events", "expected"),
    [
        (Instant("install", "before"), [{"e": "start", "step": "stop"}], False),
        (Instant("install", "before"), [START], True),
        (Instant("install", "during", nth=1), [START, INTENT], False),
        (Instant("install", "during", nth=1), [START, INTENT, INTENT], True),
        (Instant("install", "during", nth=1), [START, INTENT, VERDICT], True),
        (Instant("install", "during", delay=0.1), [START], True),
        (Instant("install", "after"), [START, INTENT], False),
        (Instant("install", "after"), [START, INTENT, VERDICT], True),
        (Instant("", "undo"), [START, INTENT, VERDICT], False),
        (Instant("", "undo"), [START, INTENT, VERDICT, UNDO], True),
        (Instant("", "undo", nth=1), [START, UNDO], False),
        (Instant("", "undo", nth=1), [START, UNDO, UNDO], True),
    ],
)
def test_an_instant_is_reached(at: Instant, events: list[dict[str, Any]], expected: bool) -> None:
    assert reached(at, events) is expected


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_mutation_fits_the_sources(mutation: Mutation) -> None:
    text = (SOURCE / mutation.module).read_text()
    assert mutation.change(text) != text
    compile(mutation.change(text), mutation.module, "exec")
