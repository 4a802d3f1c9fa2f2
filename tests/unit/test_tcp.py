"""What a connection has said before anybody writes to it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from ddtree_deploy import tcp

HELLO = f"{tcp.IDENTIFICATION}\r\n".encode()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60)
        yield made


def far_side(listener: socket.socket, length: int) -> bytes:
    peer, _ = listener.accept()
    with peer:
        peer.settimeout(60)
        return peer.recv(length, socket.MSG_WAITALL)


def test_the_identification_is_sent_at_once_and_only_once(listener: socket.socket) -> None:
    with tcp.connect("127.0.0.1", listener.getsockname()[1], 60) as sock:
        assert sock.send(HELLO) == len(HELLO), "whoever writes it is told that it was sent"
        assert sock.send(b"and then") == 8
        assert far_side(listener, len(HELLO) + 8) == HELLO + b"and then"


def test_nothing_else_can_be_said_first(listener: socket.socket) -> None:
    with tcp.connect("127.0.0.1", listener.getsockname()[1], 60) as sock:
        with pytest.raises(OSError) as caught:
            sock.send(b"SSH-2.0-other\r\n")
        assert caught.value.errno == errno.EPROTO
        assert far_side(listener, len(HELLO)) == HELLO
