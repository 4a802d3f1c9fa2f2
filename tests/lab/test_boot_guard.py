"""A host that boots by itself in the middle of a run never serves half a change; nobody types a command."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.controller import Running
from tests.lab.gated import Gated, gated
from tests.lab.hosts import Host, wait_for
from tests.lab.image import Image
from tests.lab.test_systemd_rollout import UNITS

pytestmark = pytest.mark.lab
AddHosts = Callable[..., list[Host]]
GUARD = f"{UNITS}/sglang.service.d/zzzz-ddtree-deploy-guard.conf"


def power_cut(deployment: Gated, running: Running) -> None:
    """The host loses its power and boots again; the controller is gone, too."""
    deployment.host.power_cut()
    running.signal(signal.SIGKILL)
    running.process.wait(60)
    deployment.host.boot()


def assert_back_by_itself(deployment: Gated) -> None:
    """The old release serves, the guard is gone, and the next command finds nothing left to do."""
    host = deployment.host
    wait_for(host.generates, "tokens from the host that booted by itself")
    assert deployment.algorithm() == "DFLASH"
    wait_for(lambda: not host.path(GUARD).exists(), "the guard to be removed")
    said = "! systemctl list-units --all --plain --no-legend 'ddtree-deploy-*' | grep -q ."
    wait_for(lambda: host.run(said, check=False).returncode == 0, "the recovery to be over")
    deployment.assert_as_before()
    (status,) = deployment.controller.run("status", host.name).expect(0).events
    assert status["orphan"] is None and status["live"] == "" and not status["lock"]["held"], status


@pytest.mark.parametrize("step", ["install", "start", "health"])
@pytest.mark.parametrize("user", ["", "sgl"])
def test_after_a_power_cut_the_old_release_serves_with_no_command(
    add_hosts: AddHosts, tmp_path: Path, step: str, user: str
) -> None:
    (host,) = add_hosts(1, Image(user=user))
    deployment = gated(host, tmp_path, step)
    running = deployment.begin()
    assert host.path(GUARD).exists()
    power_cut(deployment, running)
    assert_back_by_itself(deployment)


def test_an_orderly_reboot_in_the_middle_ends_the_same(host: Host, tmp_path: Path) -> None:
    deployment = gated(host, tmp_path, "start")
    running = deployment.begin()
    boot_id = host.boot_id()
    host.run("systemctl --no-block reboot")
    running.signal(signal.SIGKILL)
    running.process.wait(60)
    host.await_reboot(boot_id)
    assert_back_by_itself(deployment)


def test_a_service_started_by_hand_after_the_runner_died_is_recovered_first(
    host: Host, tmp_path: Path
) -> None:
    deployment = gated(host, tmp_path, "start")
    running = deployment.begin()
    host.run("systemctl kill --kill-who=all --signal=KILL 'ddtree-deploy-*.service'")
    running.finish().expect(3)
    host.run("systemctl start --no-block sglang")
    assert_back_by_itself(deployment)


def test_a_service_started_by_hand_after_the_stop_is_not_changed_under_its_feet(
    host: Host, tmp_path: Path
) -> None:
    deployment = gated(host, tmp_path, "install")
    running = deployment.begin()
    host.run("systemctl start sglang")
    wait_for(host.generates, "the old release, started by hand")
    deployment.open()
    outcome = running.finish().expect(1).outcome
    assert outcome["step"] == "install" and "started by somebody" in outcome["reason"], outcome
    assert_back_by_itself(deployment)


def test_a_run_that_had_decided_is_finished_at_boot(host: Host, tmp_path: Path) -> None:
    """The journal's last line is cut off: the run died after its decision, before it had said so."""
    deployment = gated(host, tmp_path, "health")
    running = deployment.begin()
    guard = host.path(GUARD).read_bytes()
    deployment.open()
    running.finish().expect(0)
    assert not host.path(GUARD).exists()
    after = deployment.look()
    (journal,) = host.path("/var/lib/ddtree-deploy").glob("sites/*/runs/*/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    decided = next(i for i, line in enumerate(lines) if b'"e":"commit"' in line)
    journal.write_bytes(b"".join(lines[: decided + 1]))
    host.path(GUARD).write_bytes(guard)
    host.power_cut()
    host.boot()
    wait_for(host.generates, "tokens")
    wait_for(lambda: not host.path(GUARD).exists(), "the guard to be removed")
    assert deployment.algorithm() == "DDTREE"
    assert deployment.look() == after
    (status,) = deployment.controller.run("status", host.name).expect(0).events
    assert status["orphan"] is None and status["release"]["verdict"] == "good"


def test_a_power_cut_during_the_recovery_at_boot_is_recovered_at_the_next(host: Host, tmp_path: Path) -> None:
    deployment = gated(host, tmp_path, "start")
    power_cut(deployment, deployment.begin())
    wait_for(lambda: "recover" in _journal(host), "the recovery to begin")
    host.power_cut()
    host.boot()
    assert_back_by_itself(deployment)


def _journal(host: Host) -> str:
    (journal,) = host.path("/var/lib/ddtree-deploy").glob("sites/*/runs/*/journal.jsonl")
    return "recover" if b'"e":"recover"' in journal.read_bytes() else ""


def test_a_rollback_is_guarded_too(host: Host, tmp_path: Path) -> None:
    wait_for(host.generates, "tokens")
    deployment = Gated(host, tmp_path)
    deployment.rollout().expect(0)
    released = deployment.look()
    deployment.gate("start", "rollback")
    power_cut(deployment, deployment.begin("rollback"))
    wait_for(host.generates, "tokens")
    assert deployment.algorithm() == "DDTREE"
    wait_for(lambda: not host.path(GUARD).exists(), "the guard to be removed")
    assert deployment.look() == released


def test_the_units_own_preparations_run_after_the_guard_and_as_they_were(
    add_hosts: AddHosts, tmp_path: Path
) -> None:
    extra = f"{UNITS}/sglang.service.d/10-own.conf"
    text = "[Service]\nExecStartPre=/bin/sh -c 'echo %%n $$$$ >> /run/own-pre'\nExecStartPre=-/bin/false\n"
    (host,) = add_hosts(1, Image(files={extra: text}))
    deployment = gated(host, tmp_path, "start")
    running = deployment.begin()
    host.run("rm -f /run/own-pre")
    deployment.open()
    running.finish().expect(0)
    assert host.run("wc -l < /run/own-pre").stdout.strip() == "1"
    assert host.run("cut -d' ' -f1 /run/own-pre").stdout.strip() == "%n"
    deployment.rollback().expect(0)
    deployment.assert_as_before()
