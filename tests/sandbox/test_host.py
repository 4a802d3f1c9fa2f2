"""The sandbox's parts as data: ports, hosts file, command line, and finding its processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from ddtree_deploy.commands.inputs import load_hosts
from ddtree_deploy.errors import DeployError
from ddtree_deploy.sandbox import down, look, processes, service, up
from ddtree_deploy.sandbox.errors import PortTaken, SandboxError
from ddtree_deploy.sandbox.layout import MARKER, Layout, Ports, choose_ports
from tests.ports import free_port

PROJECT = Path(__file__).parents[2]


@contextmanager
def program(*arguments: str, marker: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that says a line when it is ready and ends with the block."""
    environment = {"PATH": os.environ["PATH"]} | ({MARKER: str(marker)} if marker else {})
    child = subprocess.Popen(
        [sys.executable, "-c", *arguments], env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


READY = "import sys, time; print('ready', flush=True); time.sleep(600)"
LISTENING = (
    "import socket, sys, time; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen();"
    "print('ready', flush=True); time.sleep(600)"
)


def test_ports_come_from_the_call_then_the_environment_then_the_last_time() -> None:
    environment = {"DDTREE_SANDBOX_SSH_PORT": "32201", "DDTREE_SANDBOX_HTTP_PORT": ""}
    last = Ports(40001, 40002)
    assert choose_ports(environment={}) == Ports(2222, 31000)
    assert choose_ports(environment=environment, usual=last) == Ports(32201, 40002)
    assert choose_ports(5, 6, environment=environment, usual=last) == Ports(5, 6)


@pytest.mark.parametrize("text", ["http", "0", "65536", "-1", "22 "])
def test_a_bad_port_is_named(text: str) -> None:
    with pytest.raises(SandboxError, match=r"DDTREE_SANDBOX_SSH_PORT: .* is not a port number"):
        choose_ports(environment={"DDTREE_SANDBOX_SSH_PORT": text})


def test_two_services_on_one_port_are_refused() -> None:
    with pytest.raises(SandboxError, match="cannot both have port 7"):
        choose_ports(7, 7)


def test_the_hosts_file_is_the_shipped_entry_with_the_real_ports(tmp_path: Path) -> None:
    layout = Layout.at(tmp_path / "sandbox")
    layout.folder.mkdir()
    layout.record(Ports(32202, 31202))
    ours = load_hosts(layout.hosts_file).hosts["sandbox"]
    shipped = load_hosts(PROJECT / "hosts.yaml").hosts["sandbox"]
    assert (ours.address, ours.port, ours.python) == ("127.0.0.1", 32202, shipped.python)
    assert ours.service is not None and shipped.service is not None
    assert ours.service.endpoint == "http://127.0.0.1:31202"
    assert ours.service.launch == shipped.service.launch
    assert ours.service.kind == shipped.service.kind
    assert ours.identity_file == layout.keys / "id"
    assert ours.playbook is not None and ours.playbook.name == "sandbox.yaml"
    assert shipped.playbook == PROJECT / "playbooks" / "sandbox.yaml" and shipped.playbook.exists()
    assert shipped.identity_file == PROJECT / ".sandbox" / "keys" / "id"
    assert layout.recorded_ports() == Ports(32202, 31202)


def test_the_service_is_the_chain_on_loopback(tmp_path: Path) -> None:
    command = service.command(Layout.at(tmp_path), 31203)
    pairs = dict(pairwise(command))
    assert command[0] == str(tmp_path / "home" / "venv" / "bin" / "python3")
    assert pairs["--speculative-algorithm"] == "DFLASH"
    assert (pairs["--host"], pairs["--port"]) == ("127.0.0.1", "31203")
    assert pairs["--speculative-draft-model-path"] == str(tmp_path / "models" / "draft_half")


def test_the_service_inherits_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    environment = service.environment(Layout.at(tmp_path))
    assert "HF_TOKEN" not in environment
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HOME"] == str(tmp_path / "home")
    assert environment[MARKER] == str(tmp_path)


def test_processes_are_found_by_their_marker(tmp_path: Path) -> None:
    layout = Layout.at(tmp_path)
    with program(READY, marker=tmp_path) as ours, program(READY, marker=tmp_path / "x"), program(READY):
        assert [process.pid for process in service.members(layout)] == [ours.pid]


def test_orphans_of_the_service_are_of_its_session(tmp_path: Path) -> None:
    """A server's child is of its session whoever its parent is."""
    fork = "import os, time; print('ready', flush=True) if os.fork() else None; time.sleep(600)"
    with program(fork, "sglang.launch_server", marker=tmp_path) as server:
        found = service.tree(Layout.at(tmp_path))
        assert len(found) == 2
        assert server.pid in [process.pid for process in found]
        assert processes.end(found, grace=20) == []


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    with program(stubborn, marker=tmp_path) as child:
        process = processes.find(child.pid)
        assert process is not None and process.alive
        assert processes.end([process], grace=0.2) == [] or not process.alive


def test_a_reused_process_id_is_another_process() -> None:
    this = processes.find(os.getpid())
    assert this is not None and this.alive
    assert not processes.Process(this.pid, this.started - 1).alive


def test_a_foreign_server_on_the_port_is_named_and_left_alone(tmp_path: Path) -> None:
    layout, port = Layout.at(tmp_path / "sandbox"), free_port()
    with program(LISTENING, str(port)) as foreign:
        with pytest.raises(PortTaken, match=f"port {port} is taken by process {foreign.pid} "):
            service.find(layout, port)
        with pytest.raises(PortTaken):
            up(folder=layout.folder, say=lambda _line: None, ssh_port=free_port(), http_port=port)
        assert foreign.poll() is None
    assert not layout.venv.exists(), "nothing is made when a port is taken"


def test_a_taken_ssh_port_stops_up_before_anything_is_made(tmp_path: Path) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        taken = squatter.getsockname()[1]
        with pytest.raises(PortTaken, match=f"SSH port {taken}"):
            up(folder=tmp_path / "s", say=lambda _line: None, ssh_port=taken, http_port=free_port())
    assert look(tmp_path / "s").venv == "absent"


def test_down_where_there_is_no_sandbox_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    down(folder=tmp_path / "none", say=said.append)
    assert said == [f"there is no sandbox in {tmp_path / 'none'}"]


def test_purge_removes_no_folder_that_is_not_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DeployError, match="is not a sandbox"):
        down(folder=tmp_path, say=lambda _line: None, purge=True)
    assert (tmp_path / "thesis.tex").exists()


def test_down_ends_whatever_carries_the_marker_and_purge_removes_the_folder(tmp_path: Path) -> None:
    layout = Layout.at(tmp_path / "s")
    layout.folder.mkdir()
    layout.record(Ports(free_port(), free_port()))
    with program(READY, marker=layout.folder) as restarted_by_a_rollout:
        down(folder=layout.folder, say=lambda _line: None, purge=True)
        assert restarted_by_a_rollout.wait(timeout=60) != 0
    assert not layout.folder.exists()


def test_ports_do_not_change_under_a_running_sandbox(tmp_path: Path) -> None:
    layout = Layout.at(tmp_path / "s")
    layout.folder.mkdir()
    old = Ports(free_port(), free_port())
    layout.record(old)
    with (
        program(READY, marker=layout.folder),
        pytest.raises(SandboxError, match=f"runs on the ports {old.ssh}"),
    ):
        up(folder=layout.folder, say=lambda _line: None, ssh_port=free_port(), http_port=free_port())


def test_look_at_nothing(tmp_path: Path) -> None:
    found = look(tmp_path / "s")
    assert (found.ssh, found.venv, found.service) == ("", "absent", "")
    assert set(found.to_dict()) == {"folder", "hosts_file", "ssh_port", "http_port", "ssh", "venv", "service"}


def test_a_server_that_ends_while_it_starts_is_reported_with_its_last_words(tmp_path: Path) -> None:
    layout = Layout.at(tmp_path)
    layout.service_log.parent.mkdir(parents=True)
    layout.service_log.write_text("loading\nRuntimeError: no such model\n")
    with program("print('ready', flush=True)") as child:
        process = processes.find(child.pid) or processes.Process(child.pid, 0)
        with pytest.raises(SandboxError, match="RuntimeError: no such model") as caught:
            service.wait_ready(layout, process, free_port(), lambda _line: None)
    assert "less " in caught.value.next_command


def test_a_server_without_progress_is_given_up(tmp_path: Path) -> None:
    with program(READY, marker=tmp_path) as child:
        process = processes.find(child.pid)
        assert process is not None
        with pytest.raises(SandboxError, match="no answer from the service"):
            service.wait_ready(
                Layout.at(tmp_path), process, free_port(), lambda _line: None, stalled_after=0.1
            )
