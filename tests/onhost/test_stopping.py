"""When a service counts as gone, and who is asked to go: with a clock of our own, without a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.service import proc, stopping
from ddtree_deploy.onhost.service.base import Footprint
from ddtree_deploy.onhost.service.sglang_api import Endpoint

PORT = 80


class Clock:
    """The clock, and the run that waits by it: each pause takes at least half a second."""

    lock = None

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += max(seconds, 0.5)

    def progress(self, text: str, **data: Any) -> None:
        pass


class Control:
    """A service with these processes."""

    endpoint = Endpoint(f"http://127.0.0.1:{PORT}")

    def __init__(self, *members: tuple[int, int], until: float = 0.0, clock: Clock | None = None) -> None:
        self.members = frozenset(members)
        self.until, self.clock = until, clock  # till then its manager ends it

    def processes(self) -> Footprint:
        return Footprint(members=self.members)

    def stranger(self, argv: list[str]) -> str:
        return ""

    def stop_under_way(self) -> str:
        return "systemd still stops it" if self.clock and self.clock.now < self.until else ""

    def mask(self, text: str) -> str:
        return text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stopping, "time", made)
    return made


Signals = list[tuple[float, int, int]]


@pytest.fixture
def signals(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Signals:
    """(when, pid, signal) of what was sent; nobody gets it."""
    sent: Signals = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: sent.append((clock.now, pid, sig)))
    return sent


@pytest.fixture
def no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "held_ports", lambda before, endpoint: {})


@pytest.fixture
def child() -> Iterator[tuple[int, int]]:
    """(pid, start) of a process that lives as long as the test."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = proc.read(process.pid)
        assert found is not None
        yield found.key
        process.kill()


def wait_gone(clock: Clock, control: Control, before: Footprint, **options: Any) -> str:
    options = {"limit_s": 20.0, "kill": False, **options}
    return stopping.wait_gone(clock, control, before, **options)  # type: ignore[arg-type]


def myself() -> tuple[int, int]:
    found = proc.read(os.getpid())
    assert found is not None
    return found.key


def test_children_get_three_seconds_once_the_main_process_is_gone(
    clock: Clock, signals: Signals, child: tuple[int, int]
) -> None:
    began = clock.now
    with pytest.raises(StepFailed, match=f"process {child[0]} "):
        wait_gone(clock, Control(), Footprint(main=1, members=frozenset({child})))
    ((when, pid, sig),) = signals
    assert (pid, sig) == (child[0], signal.SIGTERM), "asked once, and not killed without leave"
    assert 3.0 < when - began <= 3.5


def test_children_of_a_main_process_that_still_ends_are_left_to_it(
    clock: Clock, signals: Signals, child: tuple[int, int]
) -> None:
    with pytest.raises(StepFailed):
        wait_gone(clock, Control(), Footprint(main=child[0], members=frozenset({child})))
    assert signals == []


@pytest.mark.usefixtures("no_ports")
def test_who_was_given_the_number_of_a_process_that_is_gone_gets_no_signal(
    clock: Clock, signals: Signals
) -> None:
    reused = (os.getpid(), 1)
    with pytest.raises(StepFailed, match=f"process {os.getpid()} "):
        wait_gone(clock, Control(myself()), Footprint(members=frozenset({reused})))
    assert signals == []


def test_with_kill_what_is_left_at_the_limit_is_killed_once(
    clock: Clock, signals: Signals, child: tuple[int, int]
) -> None:
    began = clock.now
    with pytest.raises(StepFailed, match="SIGKILL did not end it"):
        wait_gone(clock, Control(), Footprint(main=child[0], members=frozenset({child})), kill=True)
    ((when, pid, sig),) = signals
    assert (pid, sig) == (child[0], signal.SIGKILL)
    assert 20.0 < when - began <= 20.5
    assert 30.0 < clock.now - began <= 31.5


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"undoing": True}, 60.0),
        ({"undoing": False}, 20.0),
        ({"undoing": True, "kill": True}, 30.0),
    ],
)
def test_case_33_a_stop_that_its_manager_is_at_work_on_is_waited_for_beyond_the_limit(
    clock: Clock, signals: Signals, child: tuple[int, int], options: dict[str, bool], least: float
) -> None:
    began = clock.now
    control = Control(child, until=began + 60.0, clock=clock)
    with pytest.raises(StepFailed) as failed:
        wait_gone(clock, control, Footprint(child[0], frozenset({child})), **options)
    assert least < clock.now - began <= least + 6.0
    assert ("systemd still stops it" in failed.value.reason) is (not options["undoing"])
    assert bool(signals) is ("kill" in options)


def held(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, holders: set[int], until: float
) -> Callable[[Footprint, int], dict[int, set[int]]]:
    end = clock.now + until

    def ports(before: Footprint, endpoint: int) -> dict[int, set[int]]:
        return {PORT: holders} if clock.now < end else {}

    monkeypatch.setattr(stopping, "held_ports", ports)
    return ports


def test_a_held_port_is_not_free_though_nobody_is_seen_to_hold_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now
    held(monkeypatch, clock, set(), 5.0)
    assert wait_gone(clock, Control(), Footprint()) == f"port {PORT} is free"
    assert clock.now - began >= 5.0
    held(monkeypatch, clock, set(), 100.0)
    with pytest.raises(StepFailed) as failed:
        wait_gone(clock, Control(), Footprint())
    assert f"port {PORT} is held on port {PORT}; end it by hand" in failed.value.reason


def test_who_holds_a_port_is_named_instead(
    clock: Clock, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(monkeypatch, clock, {os.getpid()}, 100.0)
    with pytest.raises(StepFailed) as failed:
        wait_gone(clock, Control(), Footprint())
    assert f"process {os.getpid()} (" in failed.value.reason
    assert f"on port {PORT}" in failed.value.reason and "is held" not in failed.value.reason
    assert signals == [], "it is none of the service's"


def test_case_26_with_kill_a_stranger_on_the_port_gets_no_signal(
    clock: Clock, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(monkeypatch, clock, {os.getpid()}, 100.0)
    with pytest.raises(StepFailed) as failed:
        wait_gone(clock, Control(), Footprint(), kill=True)
    assert f"process {os.getpid()} (" in failed.value.reason
    assert "no process of the service" in failed.value.reason
    assert "kill: true" not in failed.value.reason, "it would not help"
    assert signals == []


@pytest.mark.parametrize("holders", [{1}, set()], ids=["seen", "unseen"])
def test_case_26_an_undo_leaves_a_port_to_the_stranger_that_holds_it(
    clock: Clock, signals: Signals, monkeypatch: pytest.MonkeyPatch, holders: set[int]
) -> None:
    held(monkeypatch, clock, holders, 100.0)
    said = wait_gone(clock, Control(), Footprint(), kill=True, undoing=True)
    assert said == "what is left is not the service's"
    assert signals == []


def test_case_26_an_undo_kills_its_own_and_leaves_the_stranger(
    clock: Clock, signals: Signals, monkeypatch: pytest.MonkeyPatch, child: tuple[int, int]
) -> None:
    held(monkeypatch, clock, {os.getpid()}, 100.0)
    with pytest.raises(StepFailed, match=f"process {child[0]} "):
        wait_gone(clock, Control(child), Footprint(), kill=True, undoing=True)
    assert {pid for _, pid, _ in signals} == {child[0]}


@pytest.mark.usefixtures("no_ports")
def test_all_ports_of_the_service_are_named(clock: Clock) -> None:
    before = Footprint(sockets=frozenset({(9001, "1"), (9000, "2")}))
    assert wait_gone(clock, Control(), before) == f"ports {PORT}, 9000, 9001 are free"


@pytest.mark.parametrize(("bound", "pause"), [(30.0, 1.0), (0.25, 0.25)])
def test_draining_looks_each_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, bound: float, pause: float
) -> None:
    monkeypatch.setattr(stopping, "running_requests", lambda endpoint: 3)
    said = stopping.drain(clock, Control.endpoint, bound)  # type: ignore[arg-type]
    assert said == f"3 requests still ran after {bound:.0f} s"
    assert set(clock.pauses) == {pause}


def test_a_listening_socket_is_seen_and_a_connected_one_is_none() -> None:
    with socket.socket() as listening, socket.socket() as caller:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        caller.connect(listening.getsockname())
        mine = caller.getsockname()[1]
        assert stopping.held_ports(Footprint(), port) == {port: {os.getpid()}}
        assert stopping.held_ports(Footprint(), mine) == {}
