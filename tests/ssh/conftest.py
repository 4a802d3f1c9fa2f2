"""Hosts for the tests: an SSH server of each flavour on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.sandbox import openssh, processes
from ddtree_deploy.sandbox.sshd import SshServer
from tests.need import lacking
from tests.ports import free_port


def host_of(server: SshServer, name: str = "box", **changes: object) -> Host:
    """The host entry of a server."""
    values = {
        "name": name,
        "address": server.address,
        "port": server.port,
        "python": sys.executable,
        "identity_file": server.identity,
        "known_hosts": server.known_hosts,
        "connect_timeout_s": 60.0,
        **changes,
    }
    return Host(**values)  # type: ignore[arg-type]


@pytest.fixture(scope="session", params=["openssh", "asyncssh"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    if request.param == "openssh" and openssh.find_sshd() is None:
        lacking("OpenSSH's server is not installed here", "SSHD")
    folder = tmp_path_factory.mktemp(request.param)
    with SshServer(folder / "ssh", free_port(), folder / "home", flavour=request.param) as running:
        yield running


@pytest.fixture
def host(server: SshServer) -> Host:
    return host_of(server)


@pytest.fixture
def frozen(server: SshServer) -> Iterator[Callable[[], None]]:
    """Freezes the server with all its sessions; thawed after the test."""
    stopped: list[int] = []

    def freeze() -> None:
        assert server.pid is not None
        for pid in [server.pid, *(p.pid for p in processes.descendants(server.pid))]:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    yield freeze
    for pid in stopped:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[Path]], None]]:
    """An ssh-agent of this test; the fixture's value adds keys to it."""
    socket = tmp_path / "agent.sock"
    try:
        process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE)
    except FileNotFoundError:
        lacking("ssh-agent is not installed here", "SSHD")
    assert process.stdout is not None
    process.stdout.readline()  # it prints its variables once the socket is there
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))

    def add(keys: list[Path]) -> None:
        subprocess.run(["ssh-add", "-q", *map(str, keys)], check=True)

    yield add
    process.terminate()
    process.wait()
    process.stdout.close()
