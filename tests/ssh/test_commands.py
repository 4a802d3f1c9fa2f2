"""Commands over a real SSH server: both streams, exit status, deadlines, connections that end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from ddtree_deploy import ssh
from ddtree_deploy.errors import TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.sandbox import processes
from ddtree_deploy.sandbox.sshd import SshServer
from ddtree_deploy.ssh import link as link_module

pytestmark = pytest.mark.ssh
MIB = 1 << 20


@pytest.fixture
def link(host: Host) -> Iterator[ssh.Link]:
    with ssh.connect(host) as opened:
        yield opened


def python(link: ssh.Link, code: str) -> str:
    return link.command(sys.executable, "-I", "-c", code)


def test_case_01_ten_mebibytes_on_both_streams_at_once_arrive(link: ssh.Link) -> None:
    code = "import sys; [f.buffer.write(b'x' * 65536) for _ in range(160) for f in (sys.stderr, sys.stdout)]"
    done = link.run(python(link, code), timeout=300)
    assert (done.rc, len(done.out), len(done.err)) == (0, 10 * MIB, 10 * MIB)


def test_ten_mebibytes_go_in_while_as_many_come_out(link: ssh.Link) -> None:
    data = os.urandom(MIB) * 10
    done = link.run("cat", data, timeout=300)
    assert done.rc == 0 and done.out == data
    assert (link.traffic.execs, link.traffic.sent, link.traffic.received) == (1, len(data), len(data))


def test_a_command_that_does_not_read_its_input_still_answers(link: ssh.Link) -> None:
    done = link.run("echo no >&2; exit 7", b"x" * 8 * MIB, timeout=120)
    assert (done.rc, done.err) == (7, b"no\n")


def test_a_command_ended_by_a_signal_has_an_unknown_status(link: ssh.Link) -> None:
    assert link.run(python(link, "import os; os.kill(os.getpid(), 9)"), timeout=120).rc in (None, 137)


def test_arguments_are_quoted_and_a_home_is_expanded_by_the_host(link: ssh.Link) -> None:
    tricky = "a b'c\"d $HOME `x` \\ !"
    assert link.run(python(link, f"print({tricky!r})"), timeout=120).out.decode() == tricky + "\n"
    done = link.run(link.command("~/no such/python", "x"), timeout=60)
    assert done.rc == 127 and b"~" not in done.err.replace(b"~/no", b"") and b"/no such/python" in done.err


def test_a_command_that_takes_too_long_is_given_up(link: ssh.Link) -> None:
    with pytest.raises(TransportError, match="no answer within 1 s"):
        link.run("sleep 600", timeout=1)


def test_a_frozen_server_is_noticed_when_a_command_is_started(
    link: ssh.Link, frozen: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "EXEC_S", 1.0)
    frozen()
    with pytest.raises(TransportError, match="did not start a command"):
        link.run("true", timeout=60)


def test_a_host_that_takes_long_to_open_a_session_is_named(
    host: Host, frozen: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with ssh.connect(host, told.append) as link:
        monkeypatch.setattr(link_module, "EXEC_S", 2.0)
        monkeypatch.setattr(link_module, "NOTICE_S", 0.2)
        frozen()
        with pytest.raises(TransportError, match="did not start a command within 2 s"):
            link.run("true", timeout=60)
    assert told[-1] == "waiting for the host to open a session, 2 s at most"


def test_lines_arrive_as_they_are_written_and_stdin_stays_open(link: ssh.Link) -> None:
    stream = link.stream("read x; echo one $x; read y; echo two $y; printf torn")
    stream.send(b"1\n")
    assert stream.line(60) == b"one 1"
    assert stream.line(0.05) is None
    stream.send(b"2\n")
    assert stream.line(60) == b"two 2"
    with pytest.raises(ssh.StreamEnded):
        stream.line(60)
    assert stream.rest() == b"torn" and stream.exit_status() == 0


def test_a_killed_server_ends_the_stream_and_leaves_the_status_unknown(
    server: SshServer, link: ssh.Link
) -> None:
    assert server.pid is not None
    listener = server.pid
    stream = link.stream("echo begun; sleep 600")
    assert stream.line(60) == b"begun"
    if server.flavour == "openssh":
        for process in processes.descendants(listener):
            os.kill(process.pid, signal.SIGKILL)
    else:
        os.kill(listener, signal.SIGKILL)
    with pytest.raises(ssh.StreamEnded):
        while stream.line(60) is None:
            pass
    assert stream.exit_status() is None
    server.start()  # the next test needs it
