"""GPU memory after a stop, with a stand-in for nvidia-smi that says what a test wants, look by look."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddtree_deploy.onhost.context import Context, StepFailed
from ddtree_deploy.onhost.service import gpu_memory
from ddtree_deploy.onhost.state.journal import Journal
from ddtree_deploy.onhost.wire.protocol import Plan, StepSpec

SCRIPT = """#!/bin/sh
cd "$(dirname "$0")"
case "$1" in
  *compute-apps*) cat apps;;
  *) n=$(cat looks); echo $((n + 1)) > looks; [ -e gpus.$n ] || n=last; cat gpus.$n;;
esac
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SCRIPT)
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "looks").write_text("0")
    (folder / "apps").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(gpu_memory, "EVERY_S", 0.01)
    return folder


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    plan = Plan(1, "r", "rollout", "h", "w", "c", "p", "", "/s", "", "p", "1", "v", "", "", [], [])
    made = Context(plan, tmp_path, Journal(tmp_path / "journal.jsonl"), StepSpec("stop", "stop", 60.0))
    made.deadline = time.monotonic() + 60.0
    return made


def says(driver: Path, *free: int) -> None:
    """Free MiB of GPU-a, look by look, the last one for ever; GPU-b belongs to somebody else."""
    for number, mib in enumerate(free):
        text = f"GPU-a, 0, 80000, {mib}\nGPU-b, 1, 80000, 100\n"
        (driver / f"gpus.{number}").write_text(text)
        (driver / "gpus.last").write_text(text)


def test_it_waits_until_the_driver_has_given_all_back(driver: Path, ctx: Context) -> None:
    says(driver, 2000, 30000, 60000, 79000)
    assert gpu_memory.wait_free(ctx, {"GPU-a"}, 0.85) == "79000 MiB free on 1 GPU"
    assert int((driver / "looks").read_text()) >= 3 + gpu_memory.STEADY


def test_what_is_needed_is_there_before_but_still_growing(driver: Path, ctx: Context) -> None:
    """0.5 of the total is free from the second look on; the start has to wait for the level, not for that."""
    says(driver, 2000, 50000, 60000, 70000, 79000)
    assert gpu_memory.wait_free(ctx, {"GPU-a"}, 0.5) == "79000 MiB free on 1 GPU"


def test_what_the_service_held_is_back_at_the_first_look(driver: Path, ctx: Context) -> None:
    says(driver, 2000, 79010)
    (driver / "apps").write_text("GPU-a, 11, 70000\nGPU-a, 12, 7000\nGPU-b, 1, 79900\n")
    all_back = gpu_memory.free_without([11, 12])
    assert all_back == {"GPU-a": 79000}
    assert gpu_memory.wait_free(ctx, {"GPU-a"}, 0.85, all_back=all_back) == "79010 MiB free on 1 GPU"
    assert (driver / "looks").read_text().strip() == "2"


def test_half_of_it_back_is_no_level_even_where_it_is_enough(driver: Path, ctx: Context) -> None:
    says(driver, 50000, 60000, 79000)
    assert gpu_memory.wait_free(ctx, {"GPU-a"}, 0.5, all_back={"GPU-a": 79000}) == "79000 MiB free on 1 GPU"


def test_enough_for_the_old_one_may_be_too_little_for_the_new(driver: Path, ctx: Context) -> None:
    says(driver, 50000)
    with pytest.raises(StepFailed, match="68000 MiB needed"):
        gpu_memory.wait_free(ctx, {"GPU-a"}, 0.85, limit_s=0.3, all_back={"GPU-a": 50000})


def test_a_driver_that_does_not_tell_how_much_is_held_promises_nothing(driver: Path) -> None:
    says(driver, 2000)
    (driver / "apps").write_text("GPU-a, 11, 70000\nGPU-a, 12, [N/A]\n")
    assert gpu_memory.free_without([11, 12]) == {}


def test_a_leftover_is_named_with_its_pid_and_command_at_the_deadline(driver: Path, ctx: Context) -> None:
    says(driver, 2000)
    (driver / "apps").write_text(f"GPU-a, {os.getpid()}, 77000\nGPU-b, 1, 79900\n")
    with pytest.raises(StepFailed) as failed:
        gpu_memory.wait_free(ctx, {"GPU-a"}, 0.85, limit_s=0.3)
    assert "GPU 0: 2000 MiB free, 68000 MiB needed" in failed.value.reason
    assert f"process {os.getpid()} (" in failed.value.reason and "holds 77000 MiB" in failed.value.reason
    command = " ".join(Path("/proc/self/cmdline").read_text().split("\0")).strip()
    assert f"process {os.getpid()} ({command[:40]}" in failed.value.reason
    assert "GPU 1" not in failed.value.reason


def test_memory_that_never_levels_off_is_a_failure_too(driver: Path, ctx: Context) -> None:
    says(driver, *range(1000, 40000, 100))
    with pytest.raises(StepFailed, match="still changing"):
        gpu_memory.wait_free(ctx, {"GPU-a"}, 0.0, limit_s=0.3)


def test_the_gpus_of_a_service_are_those_its_processes_compute_on(driver: Path) -> None:
    (driver / "apps").write_text("GPU-a, 11, 70000\nGPU-b, 12, [N/A]\n")
    assert gpu_memory.used_by([11]) == {"GPU-a"}
    assert gpu_memory.used_by([12, 13]) == {"GPU-b"}


@pytest.mark.parametrize("broken", ["exit 9", "echo 'No devices were found'", "echo a, b, c, d"])
def test_a_driver_that_does_not_answer_is_no_reason_to_wait(driver: Path, ctx: Context, broken: str) -> None:
    (driver / "nvidia-smi").write_text(f"#!/bin/sh\n{broken}\n")
    assert gpu_memory.wait_free(ctx, {"GPU-a"}, 0.9) == ""
    assert gpu_memory.used_by([1]) == set()


def test_the_fraction_is_the_one_of_the_future_command_line() -> None:
    assert gpu_memory.fraction_of(["python", "-m", "sglang", "--mem-fraction-static", "0.85"]) == 0.85
    assert gpu_memory.fraction_of(["--mem-fraction-static=0.7", "--mem-fraction-static=0.6"]) == 0.6
    assert gpu_memory.fraction_of(["--tp", "8"]) == 0.0
