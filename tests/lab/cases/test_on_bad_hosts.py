"""Full disks, links, upgrades, a service that dies, a CI job that is cancelled."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest
import yaml

from tests.lab import faults
from tests.lab.controller import Result, Running
from tests.lab.gated import Gated
from tests.lab.payloads import OVERLAID

pytestmark = pytest.mark.lab


def cancelled(running: Running) -> Result:
    """As CI systems cancel: SIGINT, 7.5 s, SIGTERM, 2.5 s, SIGKILL, to the whole group."""
    for sig, patience in ((signal.SIGINT, 7.5), (signal.SIGTERM, 2.5), (signal.SIGKILL, 60.0)):
        with contextlib.suppress(ProcessLookupError):
            running.signal(sig)
        deadline = time.monotonic() + patience
        while running.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if running.process.poll() is not None:
            break
    return running.finish()


@pytest.mark.parametrize("step", ["local", "smoke", "stop", "install", "benchmark"])
def test_case_03_a_cancelled_job_leaves_the_host_as_before(deployment: Gated, step: str) -> None:
    words = ["--payload", str(deployment.payload), "--playbook", str(deployment.folder / "rollout.yaml")]
    running = deployment.controller.start("rollout", deployment.host.name, "--yes", *words)
    running.step(step)
    done = cancelled(running)
    assert done.code in (130, 8, -signal.SIGKILL), done
    if done.code != 130:  # a busy machine: the undo took longer than CI's patience
        attach(deployment).expect(130)
    assert deployment.algorithm() == "DFLASH"


def test_case_03_when_the_undo_outlives_the_job_the_next_run_names_it_and_attach_tells_its_end(
    deployment: Gated,
) -> None:
    deployment.gate("health")
    running = deployment.begin()
    deployment.host.mood(when={"DFLASH": {"load_s": 20.0}})  # the old service takes its time to come back
    done = cancelled(running)
    assert done.code in (8, -signal.SIGKILL), done
    refused = deployment.rollout().expect(5)
    (run,) = {e["run"] for e in running.seen if e["e"] == "plan"}
    reason = refused.outcome["reason"]
    assert f"run {run} of " in reason and " since 2" in reason and "undo of stop" in reason, refused
    attach(deployment).expect(130)
    assert deployment.algorithm() == "DFLASH"


def attach(deployment: Gated) -> Result:
    return deployment.controller.run("attach", deployment.host.name)


@pytest.mark.parametrize("step", ["backup", "stage", "install"])
def test_case_06_a_disk_that_runs_full_ends_as_before_with_nothing_left(deployment: Gated, step: str) -> None:
    """16 kB are left when the step begins; the bytecode that checks and imports write does not fit either."""
    deployment.gate(step)
    old = deployment.host.unit()["MainPID"]
    running = deployment.begin()
    with faults.full_disk(deployment.host, leave=16 * 1024):
        deployment.open()
        done = running.finish().expect(1)
        assert "as before" in done.outcome["state"] or "nothing was changed" in done.outcome["state"], done
    if step != "install":  # the service was not touched, then
        assert deployment.host.unit()["MainPID"] == old


def test_case_07_a_target_that_is_a_link_is_drift_and_comes_back_as_a_link(deployment: Gated) -> None:
    live = deployment.site / OVERLAID
    text = live.read_text()
    elsewhere = deployment.host.path("/opt/sglang/elsewhere.py")
    elsewhere.write_text(text)
    live.unlink()
    live.symlink_to("/opt/sglang/elsewhere.py")
    try:
        linked = deployment.look()
        assert OVERLAID.split("/")[-1] in str(deployment.rollout().expect(6))
        assert deployment.look() == linked
        words = ["--payload", str(deployment.payload), "--playbook", str(deployment.folder / "rollout.yaml")]
        name = deployment.host.name
        deployment.controller.run("rollout", name, "--yes", "--accept-drift", *words).expect(0)
        assert not live.is_symlink() and elsewhere.read_text() == text
        deployment.rollback().expect(0)
        assert deployment.look() == linked
    finally:
        live.unlink()
        live.write_text(text)
        elsewhere.unlink()
        deployment.before = deployment.look()


def test_case_08_a_sibling_venv_that_shares_the_file_keeps_its_bytes(deployment: Gated) -> None:
    live = deployment.site / OVERLAID
    sibling = deployment.host.path("/opt/sglang/sibling.py")
    sibling.hardlink_to(live)
    text, inode = sibling.read_text(), sibling.stat().st_ino
    deployment.rollout().expect(0)
    assert live.read_text() != text == sibling.read_text()
    deployment.rollback().expect(0)
    assert sibling.stat().st_ino == inode and sibling.read_text() == text
    sibling.unlink()


def test_case_13_after_the_first_rollout_failed_no_file_or_folder_of_it_is_left(deployment: Gated) -> None:
    deployment.host.mood(when={"DDTREE": {"exit_at_once": 3}})
    done = deployment.rollout().expect(1, "start")
    assert "rolled back" in done.outcome["reason"] and done.outcome["state"] == "as before"
    assert not list(deployment.site.rglob("*tiny*"))
    assert not deployment.host.path("/etc/systemd/system/sglang.service.d").exists()


def test_case_17_active_and_dead_five_seconds_later_is_not_a_pass(deployment: Gated) -> None:
    deployment.host.mood(when={"DDTREE": {"crash_after_s": 5.0}})
    file = deployment.folder / "rollout.yaml"
    book = yaml.safe_load(file.read_text())
    wait = {"run": {"name": "wait", "command": ["/bin/sleep", "7"], "timeout": "60s"}}
    names = [s if isinstance(s, str) else next(iter(s)) for s in book["steps"]]
    book["steps"].insert(names.index("health"), wait)
    file.write_text(yaml.safe_dump(book, sort_keys=False))
    done = deployment.rollout().expect(1)
    assert done.outcome["step"] in ("start", "health"), done
    assert deployment.algorithm() == "DFLASH"


def test_case_21_an_sglang_that_was_upgraded_since_is_drift_and_nothing_is_touched(deployment: Gated) -> None:
    old = deployment.host.unit()["MainPID"]
    info = next(deployment.site.glob("sglang-*.dist-info"))
    newer = info.with_name("sglang-0.5.99.dist-info")
    info.rename(newer)
    meta = newer / "METADATA"
    text = meta.read_text()
    meta.write_text(text.replace("0.5.23", "0.5.99"))
    try:
        changed = deployment.look()
        done = deployment.rollout().expect(6)
        assert "0.5.99" in done.outcome["reason"] and "0.5.23" in done.outcome["reason"], done
        assert deployment.look() == changed and deployment.host.unit()["MainPID"] == old
    finally:
        meta.write_text(text)
        newer.rename(info)
        deployment.before = deployment.look()
