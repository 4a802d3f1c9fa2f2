"""What the product reads of units, beside what systemd and the kernel make of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ddtree_deploy.onhost
from tests.lab.hosts import Host

pytestmark = pytest.mark.lab
UNITS = 300


@pytest.mark.parametrize("seed", [20261201])
def test_command_and_environment_that_are_derived_are_those_of_the_process(host: Host, seed: int) -> None:
    (source,) = ddtree_deploy.onhost.__path__
    shutil.copytree(source, host.path("/opt/product/onhost"))
    shutil.copy(Path(__file__).with_name("random_units.py"), host.path("/opt/product/random_units.py"))
    said = host.run(f"python3 /opt/product/random_units.py /opt/product {UNITS} {seed}", timeout=600)
    told = json.loads(said.stdout.splitlines()[-1])
    assert told["wrong"] == []
    assert told["same"] > UNITS * 0.6, "most of them have to start"
    assert told["same"] + told["not_started"] + told["refused"] == UNITS
