"""Case 33: a unit may take longer to end than `stop.limit`; the service is never left to die later."""

from __future__ import annotations

import signal

import pytest

from tests.lab.beside import Make, service
from tests.lab.gated import Gated
from tests.lab.hosts import wait_for

pytestmark = pytest.mark.lab
DROP_IN = "sglang.service.d/10-slow.conf"
OURS = "sglang.service"


def slow(deployment: Gated, beside: Make, text: str = "TimeoutStopSec=12") -> None:
    beside({DROP_IN: f"[Service]\n{text}\n"}, [])
    deployment.settings(stop={"drain": "1s", "limit": "3s"})


def assert_serves_for_good(deployment: Gated) -> None:
    """Nothing is about to end it any more."""
    host = deployment.host
    assert host.generates() and deployment.algorithm() == "DFLASH"
    shown = host.run(f"systemctl show -p ActiveState,Job {OURS}").stdout.split()
    assert shown == ["ActiveState=active", "Job="], shown


@pytest.mark.parametrize("text", ["TimeoutStopSec=12", "TimeoutStopSec=5\nExecStop=/bin/sleep 60"])
def test_case_33_a_stop_that_runs_into_the_limit_is_undone_and_the_undo_waits_for_the_unit(
    deployment: Gated, beside: Make, text: str
) -> None:
    slow(deployment, beside, text)
    if "ExecStop" not in text:
        deployment.host.mood(ignore_term=True)
    old = deployment.host.unit()["MainPID"]
    own, _, _ = text.partition("\n")
    said = str(deployment.plan().expect(0))
    assert "stop.limit is 3 s" in said and own in said, said
    done = deployment.rollout().expect(1, "stop")
    (preflight,) = [e for e in done.events if e["e"] == "verdict" and e["step"] == "preflight"]
    assert "stop.limit is 3 s" in preflight["reason"], preflight
    assert "systemd still stops sglang.service" in done.outcome["reason"], done
    assert done.outcome["state"] == "as before"
    assert deployment.host.unit()["MainPID"] != old
    assert_serves_for_good(deployment)


def test_case_33_nothing_is_said_of_a_limit_that_is_long_enough(deployment: Gated, beside: Make) -> None:
    beside({DROP_IN: "[Service]\nTimeoutStopSec=12\n"}, [])  # the limit is 20 s
    assert "stop.limit" not in str(deployment.plan().expect(0).events)


def test_case_33_a_unit_without_a_limit_of_its_own_is_said(deployment: Gated, beside: Make) -> None:
    slow(deployment, beside, "TimeoutStopSec=infinity")
    assert "TimeoutStopSec=infinity" in str(deployment.plan().expect(0))


@pytest.mark.parametrize("way", ["interrupted", "killed"])
def test_case_33_whoever_ends_the_run_while_the_unit_ends(deployment: Gated, beside: Make, way: str) -> None:
    slow(deployment, beside)
    deployment.settings(stop={"drain": "1s", "limit": "20s"})
    deployment.host.mood(ignore_term=True)
    words = ["--payload", str(deployment.payload), "--playbook", str(deployment.folder / "rollout.yaml")]
    running = deployment.controller.start("rollout", deployment.host.name, "--yes", *words)
    running.step("stop")
    ending = "deactivating"
    wait_for(lambda: deployment.host.unit()["ActiveState"] == ending, "the service to be asked to end")
    if way == "interrupted":
        running.signal(signal.SIGINT)
        running.finish().expect(130)
    else:
        deployment.host.run("systemctl kill --kill-who=all --signal=KILL 'ddtree-deploy-*.service'")
        running.finish().expect(3)
        deployment.controller.run("recover", deployment.host.name).expect(0)
    assert_serves_for_good(deployment)


def test_case_33_a_dependent_that_takes_its_time_to_end_is_waited_for_too(
    deployment: Gated, beside: Make
) -> None:
    slow(deployment, beside, "TimeoutStopSec=2")
    deaf = "/bin/sh -c \"trap '' TERM; while :; do sleep 1; done\""
    text = service(f"Requires={OURS}\nAfter={OURS}", deaf, "TimeoutStopSec=8\nKillMode=mixed")
    units = beside({"lab-deaf.service": text})
    done = deployment.rollout().expect(1, "stop")
    assert done.outcome["state"] == "as before", done
    units.settle()
    assert_serves_for_good(deployment)
