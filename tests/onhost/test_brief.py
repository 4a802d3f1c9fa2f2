"""Short calls of other programs end with the step that makes them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.programs import bounded, systemctl

from .host import until


def over_after(seconds: float) -> AbstractContextManager[None]:
    end = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end:
            raise StepFailed("the step took longer than its time")

    return bounded.watched(check)


def test_a_program_that_hangs_is_killed_with_its_children_when_the_steps_time_is_over() -> None:
    mark = f"import time; time.sleep(600)  # {time.monotonic_ns()}"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {mark!r}])"
    with over_after(0.5), pytest.raises(StepFailed, match="took longer"):
        bounded.call([sys.executable, "-c", script], seconds=600)
    until(
        lambda: subprocess.run(["pgrep", "-f", mark[-20:]], check=False, capture_output=True).returncode == 1
    )


def test_systemctl_is_bounded_by_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "systemctl"
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with over_after(0.3), pytest.raises(StepFailed, match="took longer"):
        systemctl.show("sglang.service", ["ActiveState"])


def test_its_own_bound_holds_without_a_step() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        bounded.call(["sleep", "600"], seconds=0.3)


def test_both_outputs_and_the_status_come_back() -> None:
    done = bounded.call(["/bin/sh", "-c", "head -c 300000 /dev/zero; echo no >&2; exit 3"], seconds=60)
    assert (done.returncode, len(done.stdout), done.stderr) == (3, 300000, "no\n")


def test_a_call_in_a_thread_is_given_up_with_the_step_and_hands_its_error_on() -> None:
    never = threading.Event()
    with over_after(0.3), pytest.raises(StepFailed):
        bounded.in_thread(never.wait)
    never.set()
    assert bounded.in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        bounded.in_thread(lambda: 1 // 0)


def test_a_child_that_keeps_the_outputs_open_is_killed_though_its_parent_has_ended() -> None:
    mark = f"sleep 600.{time.monotonic_ns()}"
    with pytest.raises(subprocess.TimeoutExpired):
        bounded.call(["/bin/sh", "-c", f"{mark} & exit 0"], seconds=0.5)
    until(lambda: subprocess.run(["pgrep", "-f", mark], check=False, capture_output=True).returncode == 1)
