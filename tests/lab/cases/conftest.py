"""One host for all cases; each leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.beside import Beside, Make
from tests.lab.gated import GATE, Gated
from tests.lab.hosts import Host, Lab, wait_for
from tests.lab.matrix.looks import STATE, leftovers

NUMBERS = {"prompts": "prompts.jsonl", "tokens": 2, "max_new_tokens": 4}
FAST = {
    "baseline": NUMBERS | {"bench": {"num_prompts": 4, "concurrency": 2, "output_len": 4, "rounds": 1}},
    "health": {"requests": 2, "need": 2, "max_new_tokens": 4, "deadline": "20s"},
}


@pytest.fixture(scope="package")
def shared(lab: Lab) -> Iterator[Host]:
    """One host for all cases, with a small disk of its own; every case leaves it as it was."""
    (host,) = lab.add(1, disk_mb=128)
    yield host
    lab.remove(host)


@pytest.fixture
def deployment(shared: Host, tmp_path: Path) -> Iterator[Gated]:
    shared.mood()
    wait_for(shared.generates, "tokens")
    made = Gated(shared, tmp_path / "user", **FAST)
    yield made
    shared.mood()
    shared.run(f"rm -f {GATE} {GATE}.reached")
    wait_for(shared.generates, "tokens")
    made.assert_as_before()
    assert leftovers(shared.path(STATE)) == []


@pytest.fixture
def beside(deployment: Gated) -> Iterator[Make]:
    made: list[Beside] = []

    def make(texts: dict[str, str], up: list[str] | None = None) -> Beside:
        made.append(Beside(deployment.host, texts, texts if up is None else up))
        wait_for(deployment.host.generates, "tokens")
        deployment.before = deployment.look()
        return made[-1]

    yield make
    for one in made:
        deployment.assert_as_before()
        one.remove()
        deployment.before = deployment.look()
