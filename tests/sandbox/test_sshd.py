"""Both flavours of the sandbox's SSH server, seen by a client."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from ddtree_deploy.sandbox import openssh, processes
from ddtree_deploy.sandbox.errors import PortTaken, SandboxError
from ddtree_deploy.sandbox.sshd import SshServer, check_free, choose
from tests import need
from tests.ports import free_port
from tests.root import need_root

pytestmark = pytest.mark.ssh
DEADLINE = 120


@pytest.fixture(scope="module", params=["openssh", "asyncssh"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    if request.param == "openssh" and openssh.find_sshd() is None:
        need.lacking("OpenSSH's server is not installed here", "SSHD")
    folder = tmp_path_factory.mktemp("a folder with spaces")
    home = folder / "home of 50%"
    with SshServer(
        folder / "ssh", free_port(), home, flavour=request.param, environment={"SANDBOX": "yes"}
    ) as running:
        (home / ".bashrc").write_text("export FROM_BASHRC=sandbox\n")
        yield running


def run(server: SshServer, command: str, stdin: bytes = b"") -> asyncssh.SSHCompletedProcess:
    async def go() -> asyncssh.SSHCompletedProcess:
        async with await client(server) as connection:
            return await connection.run(command, input=stdin, encoding=None)

    return asyncio.run(asyncio.wait_for(go(), DEADLINE))


def client(server: SshServer, **changes: object) -> asyncssh.misc._ACMWrapper[asyncssh.SSHClientConnection]:
    options: dict[str, object] = {
        "username": server.user,
        "client_keys": [str(server.identity)],
        "known_hosts": str(server.known_hosts),
        "agent_path": None,
        "config": None,
    }
    return asyncssh.connect(server.address, server.port, **(options | changes))  # type: ignore[arg-type]


def test_session_starts_in_the_sandbox_home_and_nowhere_else(server: SshServer) -> None:
    done = run(server, 'echo "$HOME"; echo ~; pwd; echo "$SANDBOX"; echo "$SSH_CONNECTION" | cut -d" " -f3')
    home = str(server.home)
    assert done.stdout.decode().splitlines() == [home, home, home, "yes", "127.0.0.1"]


def test_session_does_not_carry_the_server_environment(server: SshServer) -> None:
    names = {line.split("=")[0] for line in run(server, "env").stdout.decode().splitlines()}
    assert {"HOME", "PATH", "USER", "SHELL"} <= names
    assert not names & {"PYTEST_CURRENT_TEST", "SSH_ORIGINAL_COMMAND", "VIRTUAL_ENV"}


def test_output_on_both_streams_at_once_arrives_whole(server: SshServer) -> None:
    script = (
        "import os,sys,threading\n"
        "def w(fd, byte):\n"
        "    view = memoryview(byte * 4_000_000)\n"
        "    while view: view = view[os.write(fd, view):]\n"
        "ts = [threading.Thread(target=w, args=a) for a in ((1, b'o'), (2, b'e'))]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\n"
    )
    done = run(server, f"{sys.executable} -", stdin=script.encode())
    assert (len(done.stdout), set(done.stdout)) == (4_000_000, {ord("o")})
    assert (len(done.stderr), set(done.stderr)) == (4_000_000, {ord("e")})


def test_stdin_reaches_the_command_byte_for_byte(server: SshServer) -> None:
    data = os.urandom(2_000_000)
    done = run(server, "sha256sum", stdin=data)
    assert done.stdout.decode().split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("status", [0, 3, 255])
def test_exit_status_is_the_commands_own(server: SshServer, status: int) -> None:
    done = run(server, f"echo out; echo err >&2; exit {status}")
    assert (done.exit_status, done.stdout, done.stderr) == (status, b"out\n", b"err\n")


def test_death_by_signal_is_reported_as_such(server: SshServer) -> None:
    done = run(server, "kill -TERM $$")
    assert done.exit_signal is not None and done.exit_signal[0] == "TERM"


def test_sftp_works_relative_to_home(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")

    async def go() -> None:
        async with await client(server) as connection, connection.start_sftp_client() as sftp:
            await sftp.put(str(tmp_path / "file"), str(server.home / "uploaded"))

    asyncio.run(asyncio.wait_for(go(), DEADLINE))
    assert (server.home / "uploaded").read_bytes() == b"content"


def test_other_keys_and_passwords_are_refused(server: SshServer) -> None:
    async def go(**changes: object) -> None:
        async with await client(server, **changes):
            pass

    stranger = asyncssh.generate_private_key("ssh-ed25519")
    for attempt in ({"client_keys": [stranger]}, {"client_keys": [], "password": "secret"}):
        with pytest.raises(asyncssh.PermissionDenied):
            asyncio.run(asyncio.wait_for(go(**attempt), DEADLINE))


def test_a_second_start_keeps_the_running_server(server: SshServer) -> None:
    pid = server.pid
    assert server.start() is False
    assert server.pid == pid


def test_private_files_are_private(server: SshServer) -> None:
    for path in (server.identity, server.keys.host_key, server.keys.authorized_keys):
        assert path.stat().st_mode & 0o777 == 0o600
    assert server.keys.folder.stat().st_mode & 0o777 == 0o700


def test_stop_ends_sessions_too(tmp_path: Path, server: SshServer) -> None:
    with SshServer(tmp_path / "ssh", free_port(), tmp_path / "home", flavour=server.flavour) as own:
        process = own.process

        async def go() -> None:
            async with await client(own) as connection:
                command = await connection.create_process("echo $$; exec sleep 600")
                session = processes.find(int(await command.stdout.readline()))
                assert session is not None and process is not None
                assert await asyncio.to_thread(own.stop) == []
                assert not session.alive
                assert not process.alive

        asyncio.run(asyncio.wait_for(go(), DEADLINE))
    check_free(own.address, own.port, what="SSH")


def test_another_object_finds_and_stops_the_server(tmp_path: Path, server: SshServer) -> None:
    with SshServer(tmp_path / "ssh", free_port(), tmp_path / "home", flavour=server.flavour) as own:
        same = SshServer(tmp_path / "ssh", own.port, tmp_path / "home", flavour=server.flavour)
        assert same.pid == own.pid is not None
        assert same.stop() == []
        assert own.pid is None


def test_a_taken_port_is_refused_and_its_holder_named(tmp_path: Path, server: SshServer) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        with pytest.raises(PortTaken, match=f"SSH port {port} .*process {os.getpid()} ") as caught:
            SshServer(tmp_path / "ssh", port, tmp_path / "home", flavour=server.flavour).start()
    assert "nothing was started" in caught.value.render()


def test_only_loopback_is_served(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="loopback only"):
        SshServer(tmp_path, 0, tmp_path, address="0.0.0.0")


def test_no_server_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssh, "find_sshd", lambda: None)
    monkeypatch.setattr("ddtree_deploy.sandbox.sshd.find_spec", lambda _name: None)
    with pytest.raises(SandboxError, match="neither sshd nor asyncssh is installed here") as caught:
        choose("auto")
    assert "openssh-server" in caught.value.next_command


def test_an_ordinary_user_can_start_openssh() -> None:
    need_root("needs root, to become an ordinary user")
    if openssh.find_sshd() is None:
        need.lacking("OpenSSH's server is not installed here", "SSHD")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        prepared = SshServer(folder / "ssh", free_port(), folder / "home", flavour="openssh")
        prepared.start()
        prepared.stop()
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534)
        command = [str(openssh.find_sshd()), "-D", "-e", "-f", str(folder / "ssh" / "sshd_config")]
        child = subprocess.Popen(command, user=65534, group=65534, extra_groups=[], stderr=subprocess.PIPE)
        try:
            assert child.stderr is not None
            assert b"Server listening" in child.stderr.readline()
        finally:
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=DEADLINE)
