"""A short cut of `make faults`: every fault once at a random instant, and two pairs. The seed is printed.

DDTREE_FAULTS_SEED repeats one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.lab.hosts import Lab
from tests.lab.matrix import cells, commands, fleet, table


@pytest.mark.lab
def test_every_fault_is_survived_at_a_random_instant(lab: Lab, tmp_path: Path) -> None:
    seed = int(os.environ.get("DDTREE_FAULTS_SEED") or int.from_bytes(os.urandom(3), "big"))
    print(f"DDTREE_FAULTS_SEED={seed}")
    commands.prepare()
    rng = random.Random(seed)
    chosen = cells.shuffled(cells.short(rng), rng)
    trials = fleet.run(lab, tmp_path, chosen, hosts=6, seed=seed, evidence=tmp_path / "evidence")
    print(table.render(trials))
    assert len(trials) == len(chosen)
    failed = [f"{t.line()}\n{t.problems}" for t in trials if not t.survived]
    assert not failed, f"DDTREE_FAULTS_SEED={seed}\n" + "\n".join(failed)
