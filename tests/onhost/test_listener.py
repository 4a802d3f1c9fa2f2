"""Who answers at the endpoint: the service, or somebody in between. On real systemd: tests/lab/cases."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.service import listener, proc
from ddtree_deploy.onhost.service.base import Footprint
from ddtree_deploy.onhost.wire.facts import ServiceFacts
from tests.ports import free_port

from .serving_support import Lab, do, lab_at, of, port_open, undo, until

ME = os.getpid()
BOUND = (
    "import socket, sys, time; s = socket.create_server((sys.argv[1], int(sys.argv[2])), "
    "family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET); "
    "print('up', flush=True); sys.stdin.read()"
)


@pytest.fixture
def lab(tmp_path: Any) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        yield made


class Control:
    """A service with these processes, that should answer at `host`:`port`."""

    def __init__(self, port: int, *pids: int, host: str = "127.0.0.1", kind: str = "systemd") -> None:
        self.pids, self.state, self.socket = pids, "active", ""
        self.endpoint = SimpleNamespace(port=port, url=f"http://{host}:{port}")
        self.service = SimpleNamespace(kind=kind)

    def processes(self) -> Footprint:
        keys = frozenset(found.key for found in map(proc.read, self.pids) if found)
        return Footprint(self.pids[0] if self.pids else 0, keys)

    def socket_unit(self) -> str:
        return self.socket

    def one_look(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def describe(self) -> ServiceFacts:
        return ServiceFacts("systemd", self.state, pid=self.processes().main)

    def mask(self, text: str) -> str:
        return text


def look(control: Control) -> tuple[str, str]:
    return listener.look(control)  # type: ignore[arg-type]


@contextlib.contextmanager
def listening(address: str, port: int, program: str = sys.executable) -> Iterator[int]:
    """Another process that listens there."""
    with subprocess.Popen(
        [program, "-S", "-c", BOUND, address, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield process.pid
        process.communicate()


def test_case_26_the_service_itself_and_nobody_are_no_strangers() -> None:
    port = free_port()
    assert look(Control(port, ME)) == ("", "")
    with listening("127.0.0.1", port) as pid:
        assert look(Control(port, ME, pid)) == ("", "")


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_case_26_a_proxy_before_the_service_is_named(address: str) -> None:
    port = free_port()
    with listening(address, port) as pid:
        other, unknown = look(Control(port, ME))
        assert f"the endpoint's listener (port {port}) is process {pid} (" in other
        assert other.endswith(", no process of the service") and not unknown


def test_case_26_an_ipv6_listener_is_a_stranger_to_whom_it_answers() -> None:
    """Two listen on one port, each on its address: who answers depends on the endpoint."""
    port = free_port()
    with listening("127.0.0.1", port) as ours, listening("::1", port) as other:
        assert look(Control(port, ours)) == ("", "")
        assert f"process {other} (" in look(Control(port, ours, host="[::1]"))[0]
        first = socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)[0][0]
        is_stranger = bool(look(Control(port, ours, host="localhost"))[0])
        assert is_stranger is (first == socket.AF_INET6)


def test_case_26_another_address_of_the_port_is_not_the_endpoints() -> None:
    port = free_port()
    with listening("127.0.0.1", port) as ours, listening("127.0.0.2", port):
        assert look(Control(port, ours)) == ("", "")


def test_case_26_a_socket_of_systemd_is_the_services_if_it_triggers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    control = Control(port, ME)
    with listening("127.0.0.1", port):
        monkeypatch.setattr(proc, "holding", lambda inodes: {1, ME})
        assert "process 1 (" in look(control)[0] and ", systemd itself for a socket unit" in look(control)[0]
        control.socket = "sglang.socket"
        assert look(control) == ("", "")


def test_case_26_who_may_not_be_seen_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with listening("127.0.0.1", port):
        monkeypatch.setattr(proc, "holding", lambda inodes: set())
        assert look(Control(port, ME)) == ("", f"who listens on port {port} may not be seen")


def test_case_26_a_service_in_a_network_of_its_own_is_refused() -> None:
    if os.geteuid():
        pytest.skip("needs root")
    port = free_port()
    code = f'ip link set lo up; exec {sys.executable} -S -c "$0" 127.0.0.1 {port}'
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", code, BOUND], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert "a network of its own" in look(Control(port, process.pid))[0]
        with listening("127.0.0.1", port) as front:  # what answers here is somebody else
            assert f"process {front} (" in look(Control(port, process.pid))[0]
        process.communicate()


def test_case_26_what_is_adopted_has_to_be_a_python(tmp_path: Any) -> None:
    program = tmp_path / "proxy"
    shutil.copy2(os.path.realpath(sys.executable), program)
    port = free_port()
    env = {"PYTHONHOME": sys.base_prefix}
    with subprocess.Popen(
        [program, "-S", "-c", BOUND, "127.0.0.1", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert "that is no Python" in look(Control(port, process.pid, kind="adopted"))[0]
        process.communicate()
    with listening("127.0.0.1", port) as pid:
        assert look(Control(port, pid, kind="adopted")) == ("", "")


def test_case_26_it_is_a_problem_of_a_service_that_runs_else_a_warning() -> None:
    port = free_port()
    with listening("127.0.0.1", port):
        control = Control(port, ME)
        facts = listener.described(control)  # type: ignore[arg-type]
        assert "no process of the service" in facts.problem and not facts.warnings
        control.state, control.pids = "inactive", ()
        facts = listener.described(control)  # type: ignore[arg-type]
        assert not facts.problem and "no process of the service" in facts.warnings[0]


@pytest.mark.parametrize("kill", [False, True])
def test_case_26_a_stranger_that_takes_the_port_of_an_adopted_service_is_never_signalled(
    lab: Lab, kill: bool
) -> None:
    """Not by the stop that finds it in the place of what was recorded, and not by the undo."""
    first = lab.start_by_hand()
    ctx = lab.context(lab.service("adopted", stop_limit_s=2.0, stop_kill=kill, drain_s=0.1), "stop")
    of(ctx).record(ctx.backup_dir)
    first.kill()
    first.wait()
    until(lambda: not port_open(lab.port), "the port is free")
    with listening("127.0.0.1", lab.port) as stranger:
        with pytest.raises(StepFailed, match=f"process {stranger} .*not the service that was recorded"):
            do(ctx, "stop")
        assert undo(ctx) == []
        assert proc.read(stranger) is not None
