"""Two controllers in the same second, each with its own folder: one wins, the other is told who.

DDTREE_RACES says how often (`make race`: 50 times).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import yaml

from tests.lab.controller import Running
from tests.lab.gated import GATE, WAIT
from tests.lab.hosts import Host, Lab, wait_for
from tests.lab.image import Image
from tests.lab.matrix import commands
from tests.lab.matrix.commands import ForkingController
from tests.lab.payloads import make_payload

pytestmark = pytest.mark.lab
RACES = int(os.environ.get("DDTREE_RACES", "2"))
STEPS = ["lock", {"preflight": {"min_free": "1MiB"}}, WAIT, "backup", "stage", "install", "unlock"]


@pytest.fixture(scope="module")
def files_only(lab: Lab) -> Iterator[Host]:
    """A host without a service: the race is for the venv."""
    (host,) = lab.add(1, Image(service=False))
    commands.prepare()
    yield host
    lab.remove(host)


@pytest.fixture(scope="module")
def desks(files_only: Host, tmp_path_factory: pytest.TempPathFactory) -> list[ForkingController]:
    """Two people with a payload of the same name and version, but not of the same content."""
    made = []
    for name in ("ada", "eve"):
        folder = tmp_path_factory.mktemp(name)
        made.append(ForkingController(folder, [files_only]))
        make_payload(folder / "payload", size=100 if name == "ada" else 200)
        playbook = {"schema": 1, "name": "race", "action": "rollout", "steps": STEPS}
        (folder / "rollout.yaml").write_text(yaml.safe_dump(playbook, sort_keys=False))
        back = playbook | {"action": "rollback", "steps": [s for s in STEPS if s is not WAIT]}
        (folder / "rollback.yaml").write_text(yaml.safe_dump(back, sort_keys=False))
    return made


@pytest.mark.parametrize("race", range(RACES))
def test_of_two_controllers_exactly_one_wins_and_the_other_names_it(
    files_only: Host, desks: list[ForkingController], race: int
) -> None:
    files_only.run(f"rm -f {GATE}")
    before = set(files_only.path("/var/lib/ddtree-deploy").glob("sites/*/runs/*"))
    runs = [start(desk, "rollout") for desk in desks]
    wait_for(lambda: any(r.process.poll() is not None for r in runs), "one of two to be refused")
    lost = next(r for r in runs if r.process.poll() is not None)
    (won,) = [r for r in runs if r is not lost]
    refused = lost.finish().expect(5)
    winner = won.until(lambda e: e["e"] == "plan", "the winner's plan")["run"]
    assert winner in refused.outcome["reason"] and " since " in refused.outcome["reason"], refused
    assert won.process.poll() is None
    files_only.run(f"touch {GATE}")
    won.finish().expect(0)
    made = set(files_only.path("/var/lib/ddtree-deploy").glob("sites/*/runs/*")) - before
    assert winner in {p.name for p in made}
    start(desks[runs.index(won)], "rollback").finish().expect(0)


def start(desk: ForkingController, action: str) -> Running:
    (name,) = desk.hosts
    words = [name, "--yes", "--playbook", str(desk.folder / f"{action}.yaml")]
    if action == "rollout":
        words += ["--payload", str(desk.folder / "payload")]
    return desk.start(action, *words)
