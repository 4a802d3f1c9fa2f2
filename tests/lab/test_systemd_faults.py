"""Faults in the middle of a rollout to a systemd host: the host ends before or after, never between."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.lab import faults
from tests.lab.controller import Running
from tests.lab.hosts import Host, wait_for
from tests.lab.test_systemd_rollout import Deployment

pytestmark = pytest.mark.lab

# A step that waits until the test has made its fault, wherever in the playbook it stands.
GATE = "/run/lab-gate"
WAIT = {
    "run": {
        "name": "gate",
        "command": ["/bin/sh", "-c", f"touch {GATE}.reached; until [ -e {GATE} ]; do sleep 0.05; done"],
        "timeout": "5m",
    }
}


class Gated(Deployment):
    """A deployment whose rollout stops before a step until `open`."""

    def __init__(self, host: Host, folder: Path, before: str) -> None:
        super().__init__(host, folder)
        file = folder / "rollout.yaml"
        playbook = yaml.safe_load(file.read_text())
        names = [s if isinstance(s, str) else next(iter(s)) for s in playbook["steps"]]
        playbook["steps"].insert(names.index(before), WAIT)
        file.write_text(yaml.safe_dump(playbook, sort_keys=False))

    def begin(self) -> Running:
        """Start the rollout; return when it waits at the gate."""
        words = ["--payload", str(self.payload), "--playbook", str(self.folder / "rollout.yaml")]
        running = self.controller.start("rollout", self.host.name, "--yes", *words)
        running.step("gate")
        wait_for(lambda: self.host.run(f"test -e {GATE}.reached", check=False).returncode == 0, "the gate")
        return running

    def open(self) -> None:
        """Let the rollout go on."""
        self.host.run(f"touch {GATE}")

    def status(self) -> str:
        """What `status` says, as text."""
        return str(self.controller.run("status", self.host.name))


@pytest.fixture
def serving(host: Host) -> Host:
    """A host whose service generates."""
    wait_for(host.generates, "tokens")
    return host


def test_a_cut_of_the_connection_is_survived(serving: Host, tmp_path: Path) -> None:
    deployment = Gated(serving, tmp_path, before="start")
    running = deployment.begin()
    assert faults.cut_sessions(serving)
    running.until(lambda e: e["e"] == "reconnected", "the new connection")
    deployment.open()
    running.finish().expect(0)
    assert deployment.algorithm() == "DDTREE" and serving.generates()
    deployment.rollback().expect(0)
    deployment.assert_as_before()


def test_case_02_a_frozen_host_is_noticed_and_goes_on_when_it_thaws(serving: Host, tmp_path: Path) -> None:
    deployment = Gated(serving, tmp_path, before="install")
    running = deployment.begin()
    with faults.frozen(serving):
        running.until(lambda e: e["e"] == "disconnected", "the silence to be noticed")
    deployment.open()
    running.finish().expect(0)
    assert deployment.algorithm() == "DDTREE" and serving.generates()


def test_a_killed_controller_leaves_a_host_that_finishes(serving: Host, tmp_path: Path) -> None:
    deployment = Gated(serving, tmp_path, before="start")
    running = deployment.begin()
    running.signal(signal.SIGKILL)
    running.process.wait(60)
    deployment.open()
    wait_for(lambda: serving.generates() and deployment.algorithm() == "DDTREE", "the new release")
    # The next command follows the run to its verdict, or finds it ended; either way a rollback works.
    deployment.controller.run("attach", serving.name)
    deployment.rollback().expect(0)
    deployment.assert_as_before()


def test_an_interrupt_undoes_in_order(serving: Host, tmp_path: Path) -> None:
    deployment = Gated(serving, tmp_path, before="start")
    running = deployment.begin()
    running.process.send_signal(signal.SIGINT)
    running.finish().expect(130)
    assert deployment.algorithm() == "DFLASH" and serving.generates()
    deployment.assert_as_before()


@pytest.mark.parametrize("step", ["install", "start"])
def test_after_a_power_cut_the_host_boots_as_it_was(serving: Host, tmp_path: Path, step: str) -> None:
    deployment = Gated(serving, tmp_path, before=step)
    running = deployment.begin()
    serving.power_cut()
    running.signal(signal.SIGKILL)
    running.process.wait(60)
    serving.boot()
    wait_for(serving.generates, "tokens")
    assert "ended without a verdict" not in deployment.status()
    deployment.controller.run("recover", serving.name).expect(0)  # there is nothing left to do
    assert deployment.algorithm() == "DFLASH"
    deployment.assert_as_before()
