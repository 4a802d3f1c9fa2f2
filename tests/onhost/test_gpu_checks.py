"""Checks run side by side; one that needs GPU memory on the freest GPU, or skipped, with the reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .host import Host

CHECK = """import os
print("device", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
"""
NEEDED = 1 << 30


def nvidia_smi(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str, rc: int = 0) -> None:
    """An nvidia-smi that prints `lines` (name, total, free in MiB), first on PATH."""
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {rc}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")


def rollout(host: Host, expect: str, *, alone: bool = False, **changed: Any) -> tuple[Any, dict[str, Any]]:
    """The session, and what the smoke step said at its end."""
    files = {**host.payload(), "checks/gpu.py": CHECK}
    steps = host.steps()
    checks = next(step for step in steps if step.kind == "smoke").options["checks"]
    gpu = {"name": "gpu", "script": "checks/gpu.py", "expect": expect, "timeout_s": 30, "gpu_memory": NEEDED}
    checks[:] = [gpu] if alone else [*checks, gpu]
    session = host.rollout(files, steps=steps, **changed)
    events = [e for e in host.journal(session.run) if e.get("step") == "smoke"]
    return session, {e["e"]: e for e in events}


def test_the_check_runs_on_the_freest_gpu(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvidia_smi(monkeypatch, tmp_path, "H200, 143771, 512", "H200, 143771, 1024", "H200, 143771, 900")
    session, said = rollout(host, "device 1 PCI_BUS_ID")
    assert session.end["exit"] == 0, session.end
    assert set(said["result"]["data"]["seconds"]) == {"smoke", "gpu"}
    assert "skipped" not in said["result"]["data"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "this host has no GPU"),
        (
            ["H200, 143771, 512", "H200, 143771, 1023"],
            "it needs 1024 MiB of GPU memory, the freest of 2 GPUs has 1023 MiB",
        ),
    ],
)
def test_where_no_gpu_will_do_it_is_skipped_and_the_journal_says_why(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str], reason: str
) -> None:
    nvidia_smi(monkeypatch, tmp_path, *lines)
    session, said = rollout(host, "never")
    assert session.end["exit"] == 0, session.end
    assert said["result"]["data"]["skipped"] == {"gpu": reason}
    assert said["verdict"]["verdict"] == "pass"
    assert f"gpu skipped: {reason}" in said["verdict"]["reason"]


MEETS = """import os, sys, time
mine, other = sys.argv[0] + ".up", sys.argv[0].replace(*{words}) + ".up"
open(mine, "w").close()
until = time.monotonic() + 60
while not os.path.exists(other):
    assert time.monotonic() < until, "the other check is not running"
    time.sleep(0.01)
{end}
"""


@pytest.mark.parametrize("end", ["print('met')", "sys.exit('no good')"])
def test_checks_run_side_by_side_and_each_is_judged(host: Host, end: str) -> None:
    """Each waits for the other to have started: one after another they would both fail."""
    files = {
        **host.payload(),
        "checks/left.py": MEETS.format(words=("left", "right"), end="print('met')"),
        "checks/right.py": MEETS.format(words=("right", "left"), end=end),
    }
    steps = host.steps()
    next(step for step in steps if step.kind == "smoke").options["checks"][:] = [
        {"name": name, "script": f"checks/{name}.py", "expect": "met", "timeout_s": 90}
        for name in ("left", "right")
    ]
    before = host.digest()
    session = host.rollout(files, steps=steps)
    good = "print" in end
    assert session.end["exit"] == (0 if good else 1), session.end
    if not good:
        assert "check right ended with 1: no good" in session.end["reason"]
        assert host.digest() == before


def test_a_step_of_skipped_checks_alone_is_skipped(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvidia_smi(monkeypatch, tmp_path)
    session, said = rollout(host, "never", alone=True)
    assert session.end["exit"] == 0, session.end
    assert said["verdict"]["verdict"] == "skipped"
    assert said["verdict"]["reason"] == "gpu skipped: this host has no GPU"


def test_gpus_that_do_not_answer_are_a_reason_to_skip_only_where_none_are_expected(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvidia_smi(monkeypatch, tmp_path, "Failed to initialize NVML", rc=9)
    session, said = rollout(host, "never")
    assert session.end["exit"] == 0, session.end
    assert said["result"]["data"]["skipped"] == {"gpu": "nvidia-smi ended with 9: Failed to initialize NVML"}
    session, _ = rollout(host, "never", gpus=2)
    assert session.end["step"] == "preflight" and "2 expected" in session.end["reason"]
