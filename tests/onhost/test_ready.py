"""Who answers on the port, and what the GPUs say while a server loads."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.service import ready
from ddtree_deploy.onhost.service.base import Footprint


@pytest.fixture
def port() -> Iterator[int]:
    """One that this process holds."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


def service(port: int, *pids: int) -> SimpleNamespace:
    members = frozenset((pid, 1) for pid in pids)
    return SimpleNamespace(
        endpoint=SimpleNamespace(port=port),
        processes=lambda: Footprint(members=members),
        mask=lambda text: text,
    )


def test_a_port_that_only_a_stranger_answers_is_a_failed_start(port: int) -> None:
    with pytest.raises(StepFailed, match=rf"port {port} is answered by process {os.getpid()} \("):
        ready.check_listener(service(port, 1))  # type: ignore[arg-type]


def test_a_port_that_the_service_answers_is_none(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ready.check_listener(service(port, os.getpid()))  # type: ignore[arg-type]
    # A child of the test's kind shares the socket of the server; both hold it.
    monkeypatch.setattr(ready.proc, "holders", lambda port: {os.getpid(), 1})
    ready.check_listener(service(port, os.getpid()))  # type: ignore[arg-type]
    # Without root the holders of another user's socket are not seen.
    monkeypatch.setattr(ready.proc, "holders", lambda port: set())
    ready.check_listener(service(port, os.getpid()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("printed", "mib"), [("81000\n400\n", 81400), ("[N/A]\n400\n", 400), ("[N/A]\n", 0), ("", 0)]
)
def test_memory_in_use_is_that_of_the_gpus_that_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, mib: int
) -> None:
    (tmp_path / "says").write_text(printed)
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\ncat {tmp_path}/says\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ready.GpuMemory().used(0.0) == mib


def test_the_gpus_are_asked_every_few_seconds_only() -> None:
    answers = iter([10, 20, 30])
    memory = ready.GpuMemory(lambda: next(answers))
    assert [memory.used(now) for now in (0.0, 4.9, 5.0, 9.9, 10.0)] == [10, 10, 20, 20, 30]
