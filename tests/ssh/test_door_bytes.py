"""Bytes that are not UTF-8, wherever a host may say them."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy import ssh
from ddtree_deploy.errors import TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.sandbox import openssh
from ddtree_deploy.sandbox.sshd import SshServer
from ddtree_deploy.ssh import tcp
from tests.need import lacking
from tests.ports import free_port
from tests.ssh.box import wait_for

pytestmark = pytest.mark.ssh
LATIN = b"Gr\xfc\xdfe aus K\xf6ln \xff\xfe\x00\x1b[31m"


@pytest.fixture
def relayed(server: SshServer) -> Iterator[tuple[socket.socket, list[bytes]]]:
    """A port that leads to the server; it says the bytes in the list first, each in a packet of its own."""
    words: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                peer, _ = listener.accept()
                with peer, socket.create_connection((server.address, server.port)) as there:
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for word in words:
                        peer.sendall(word)
                    back = threading.Thread(target=copy, args=(there, peer))
                    back.start()
                    copy(peer, there)
                    back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener, words
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def at(host: Host, port: int, folder: Path) -> Host:
    """The host, on another port."""
    known = folder / "known"
    known.write_text(f"[{host.address}]:{port} {host.known_hosts.read_text().split(maxsplit=1)[1]}")
    return dataclasses.replace(host, port=port, known_hosts=known)


@pytest.mark.parametrize(
    "said",
    [
        [LATIN + b"\r\n"],
        [LATIN + b"\n", b"\n", b"S", b"SH, says \xfc\n"],
        [bytes([byte]) for byte in LATIN + b"\n"],
        [b"SS\xffH-\n", b"\xffSSH-2.0-not\n"],
    ],
)
def test_case_44_what_a_server_says_before_its_version_may_be_any_bytes(
    host: Host, tmp_path: Path, relayed: tuple[socket.socket, list[bytes]], said: list[bytes]
) -> None:
    listener, words = relayed
    words.extend(said)
    with ssh.connect(at(host, listener.getsockname()[1], tmp_path)) as link:
        assert link.run("echo in", timeout=60).out == b"in\n"


def test_what_follows_the_version_is_left_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        data = b"K\xf6ln\nSSH-2.0-x \xf6\r\n\x00\xff\nK\xf6ln\n"
        theirs.sendall(data)
        legible = tcp.Legible(ours)
        got = b""
        while len(got) < len(data):
            got += legible.recv(3)
    assert got == data.replace(b"K\xf6ln\nSSH", b"K?ln\nSSH")


def test_case_44_a_login_banner_in_latin_1_is_no_obstacle(
    server: SshServer, host: Host, tmp_path: Path
) -> None:
    if server.flavour != "openssh":
        pytest.skip("only OpenSSH has a file for it")
    port = free_port()
    banner = tmp_path / "banner"
    banner.write_bytes(LATIN + b"\n" * 50 + LATIN)
    config = tmp_path / "sshd_config"
    text = (server.folder / "sshd_config").read_text()
    config.write_text(f"Banner {banner}\n" + text.replace(f"\nPort {server.port}\n", f"\nPort {port}\n"))
    sshd = openssh.find_sshd()
    if sshd is None:
        lacking("OpenSSH's server is not installed here", "SSHD")
    process = subprocess.Popen([sshd, "-D", "-f", str(config)], stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            with contextlib.suppress(OSError), socket.create_connection((server.address, port)) as there:
                return there.recv(4) == b"SSH-"
            return False

        wait_for(answers, "sshd with a banner")
        there = at(host, port, tmp_path)
        with ssh.connect(there) as link:
            assert link.run("echo in", timeout=60).out == b"in\n"
        with pytest.raises(TransportError, match="refused every key"):
            ssh.connect(dataclasses.replace(there, user="nobody-of-that-name"))
    finally:
        process.terminate()
        process.wait()


def test_case_44_outputs_that_are_not_utf_8_arrive_as_they_are(host: Host) -> None:
    with ssh.connect(host) as link:
        done = link.run(r"printf 'K\366ln\377'; printf '\376' >&2; exit 3", timeout=60)
    assert (done.rc, done.out, done.err) == (3, b"K\xf6ln\xff", b"\xfe")
