"""A sample of `make zoo`: some hosts that were thought of, some that the seed makes up. The seed is printed.

DDTREE_ZOO_SEED repeats one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.lab import need
from tests.lab.zoo import bred, fleet, named

NAMED, BRED = 14, 6  # about 90 seconds on two cores


@pytest.mark.lab
def test_hosts_as_people_have_them_are_served_as_asked_or_refused_for_a_true_reason(tmp_path: Path) -> None:
    seed = int(os.environ.get("DDTREE_ZOO_SEED") or int.from_bytes(os.urandom(3), "big"))
    print(f"DDTREE_ZOO_SEED={seed}")
    chosen = random.Random(seed).sample(named.drafts(), NAMED) + bred.drafts(seed, BRED)
    users = tmp_path / "users"
    users.mkdir()
    told = fleet.run(
        need.folder_for_disks(), users, chosen, hosts=4, seed=seed, evidence=tmp_path / "evidence"
    )
    assert len(told) == len(chosen)
    untrue = [f"{t.line()}\n{t.problems}" for t in told if not t.truly]
    assert not untrue, f"DDTREE_ZOO_SEED={seed}\n" + "\n".join(untrue)
