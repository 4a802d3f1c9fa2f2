"""The boot guard's decisions, and its drop-in. With a real systemd: tests/lab/test_boot_guard.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddtree_deploy.onhost.main import main
from ddtree_deploy.onhost.recovery import guard_check
from ddtree_deploy.onhost.service.systemd import expansion, unitfile
from ddtree_deploy.onhost.state import held, layout
from ddtree_deploy.onhost.state.journal import Journal
from ddtree_deploy.onhost.state.lock import SiteLock
from ddtree_deploy.running import zipapp

UNIT = "sglang.service"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The units that were started anew; the start that asked for it is refused at once, not killed."""
    asked: list[str] = []
    monkeypatch.setattr(guard_check.systemctl, "run", lambda *words: asked.append(words[-1]))
    monkeypatch.setattr(guard_check, "KILLED_S", 0.0)
    return asked


def dead_run(site: Path, *more: dict[str, object]) -> Path:
    run_dir = site / "runs" / "20260101T000000-abcdef"
    run_dir.mkdir(mode=0o700)
    journal = Journal(run_dir / layout.JOURNAL)
    journal.write("run")
    journal.write("locked")
    for event in more:
        journal.write(**event)  # type: ignore[arg-type]
    journal.close()
    return run_dir


def test_with_nothing_at_work_a_start_passes(site: Path, restarts: list[str]) -> None:
    assert guard_check.may_start(site, UNIT) == 0
    assert restarts == []


def test_a_start_that_the_run_asked_for_passes(site: Path, restarts: list[str]) -> None:
    lock = SiteLock(site)
    lock.acquire("run", "me", "rollout")
    lock.starts(True)
    assert guard_check.may_start(site, UNIT) == 0
    assert main(["guard", str(site), UNIT]) == 0
    lock.release()
    assert restarts == []


def test_a_start_that_the_run_asked_for_waits_for_no_module_of_ours(site: Path, tmp_path: Path) -> None:
    runner = tmp_path / "runner.pyz"
    runner.write_bytes(zipapp.archive())
    lock = SiteLock(site)
    lock.acquire("run", "me", "rollout")
    argv = [sys.executable, "-I", "-S", "-X", "importtime", str(runner), "guard", str(site), UNIT]
    lock.starts(True)
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=300, check=True)
    assert [line.split()[-1] for line in done.stderr.splitlines() if "onhost." in line] == [
        "onhost.state",  # an empty `__init__`
        "onhost.state.held",
    ]
    lock.starts(False)
    with subprocess.Popen([*argv[:3], *argv[5:]], stdout=subprocess.PIPE, text=True) as guard:
        assert guard.stdout
        assert guard.stdout.readline().startswith("a run is at work")
        guard.kill()
    lock.release()


def test_only_the_holder_itself_says_that_the_service_is_to_start(site: Path) -> None:
    lock = SiteLock(site)
    lock.acquire('"starts": true', 'eve "starts": true', '{"starts": true}')
    assert not held.starts_the_service(site)
    lock.starts(True)
    assert held.starts_the_service(site)
    lock.release()
    assert not held.starts_the_service(site)


@pytest.mark.parametrize("ending", ["released", "asked for"])
def test_any_other_start_waits_and_is_then_made_anew(site: Path, restarts: list[str], ending: str) -> None:
    lock = SiteLock(site)
    lock.acquire("run", "me", "rollout")
    lock.starts(True)
    lock.starts(False)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(guard_check.may_start(site, UNIT)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and not codes
    if ending == "released":
        lock.release()
    else:
        lock.starts(True)
    thread.join(60)
    lock.release()
    assert (codes, restarts) == ([1], [UNIT])


def test_a_dead_run_is_recovered_before_the_start(
    site: Path, restarts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = dead_run(site)
    recovered: list[Path] = []

    def recover(site_dir: Path, run: Path) -> bool:
        recovered.append(run)
        journal = Journal(run / layout.JOURNAL)
        journal.write("end", exit=1)
        journal.close()
        return True

    monkeypatch.setattr(guard_check, "_recover", recover)
    assert guard_check.may_start(site, UNIT) == 1
    assert (recovered, restarts) == ([run_dir], [UNIT])


@pytest.mark.parametrize("this_boot", [True, False])
def test_a_recovery_that_failed_is_not_tried_again_in_the_same_boot(
    site: Path,
    restarts: list[str],
    capfd: pytest.CaptureFixture[str],
    this_boot: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boot = layout.boot_id() if this_boot else "another"
    dead_run(site, {"event": "recover", "boot_id": boot}, {"event": "end", "exit": 3})
    tried: list[Path] = []
    monkeypatch.setattr(guard_check, "_recover", lambda site_dir, run: tried.append(run))
    assert guard_check.may_start(site, UNIT) == 1
    assert len(tried) == (0 if this_boot else 1) and restarts == []
    assert "ddtree-deploy recover" in capfd.readouterr().err


def test_the_drop_in_runs_the_guard_first_as_root_and_keeps_the_units_own() -> None:
    argv = ["/venv/bin/python", "-I", "/state/50% of $HOME/runner.pyz", "guard"]
    own = ["/bin/own --pre %n", "-/bin/false"]
    text = unitfile.guard(argv, own, "run1")
    first, *others = unitfile.effective(["[Service]\nExecStartPre=/bin/own --pre %n\n", text], "ExecStartPre")
    assert others == own
    assert first.startswith("+")
    words = [unitfile.specified(word, {}) for word in unitfile.split(first[1:])]
    assert expansion.expand(words, {"HOME": "/root"}, 252) == argv
