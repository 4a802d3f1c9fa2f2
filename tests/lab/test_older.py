"""A host that an older version of the product worked on: what it left is understood, and can be undone."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.lab.hosts import Host, wait_for
from tests.lab.payloads import OVERLAID, make_payload
from tests.lab.test_systemd_rollout import Deployment
from tests.lab.tree import difference

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
# Runs had a zipapp of their own there, and compiled code was kept in a file.
OLDER = "fb5934dc1e50a7968b18800fffa93f267aa02ec0"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product of that commit, from this repository's history."""
    packed = subprocess.run(
        ["git", "archive", "--format=tar", OLDER, "ddtree_deploy"], cwd=ROOT, capture_output=True, check=False
    )
    assert packed.returncode == 0, f"a clone with its history is needed: {packed.stderr.decode()}"
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def deployment(host: Host, tmp_path: Path, older: Path) -> Deployment:
    """A host on which the older version rolls out."""
    wait_for(host.generates, "tokens")
    made = Deployment(host, tmp_path / "user")
    made.controller.product = str(older)
    return made


def test_a_release_of_an_older_version_is_seen_replaced_and_taken_back(deployment: Deployment) -> None:
    first = deployment.rollout().expect(0).outcome["run"]
    with_first = deployment.look()
    runs = deployment.host.path("/var/lib/ddtree-deploy/sites").glob("*/runs/*/runner.pyz")
    assert [path.is_symlink() for path in runs] == [False], "the older version was at work"
    deployment.controller.product = ""
    name = deployment.host.name
    payload = ["--payload", str(deployment.payload)]
    status = deployment.controller.run("status", name, *payload)
    assert status.code == 0 and first in str(status.events), status
    assert deployment.controller.run("drift", name, *payload).code == 0

    second = make_payload(deployment.folder / "second", version="0.2.0")
    deployment.rollout(second).expect(0)
    assert deployment.host.generates() and deployment.algorithm() == "DDTREE"
    deployment.rollback().expect(0)
    for then, now in zip(with_first, deployment.look(), strict=True):
        assert difference(then, now) == []
    deployment.rollout(second).expect(0)
    words = ["--yes", "--to", "base", "--playbook", str(deployment.folder / "rollback.yaml")]
    deployment.controller.run("rollback", name, *words).expect(0)
    assert deployment.algorithm() == "DFLASH" and deployment.host.generates()
    deployment.assert_as_before()


def test_a_run_that_an_older_version_left_half_way_is_recovered_by_its_own_code(
    deployment: Deployment,
) -> None:
    words = ["--payload", str(deployment.payload), "--playbook", str(deployment.folder / "rollout.yaml")]
    running = deployment.controller.start("rollout", deployment.host.name, "--yes", *words)
    running.step("health")
    assert (deployment.site / OVERLAID).read_text().startswith("BLOCK = 32")
    deployment.host.run("pkill -KILL -f '[r]unner.pyz run '")
    assert running.finish().code == 3
    deployment.controller.product = ""
    recovered = deployment.controller.run("recover", deployment.host.name)
    assert recovered.code == 0, recovered
    assert deployment.algorithm() == "DFLASH" and deployment.host.generates()
    deployment.assert_as_before()
    deployment.rollout().expect(0)
    deployment.rollback().expect(0)
    deployment.assert_as_before()
