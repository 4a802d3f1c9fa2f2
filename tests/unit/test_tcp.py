"""What a connection has said before anybody writes to it."""

from __future__ import annotations

import contextlib
import errno
import gc
import socket
import struct
import threading
import warnings
from collections.abc import Iterator

import pytest

from ddtree_deploy.ssh import tcp

HELLO = f"{tcp.IDENTIFICATION}\r\n".encode()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60)
        yield made


def far_side(listener: socket.socket, length: int) -> bytes:
    peer, _ = listener.accept()
    with peer, peer.makefile("rb") as stream:
        peer.settimeout(60)
        return stream.read(length)


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


def test_a_peer_that_hangs_up_at_once_is_a_problem_of_the_network(listener: socket.socket) -> None:
    """Half of the time it is met when the identification is sent; the other half, by who reads."""

    def reset() -> None:
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(20):
            thread = threading.Thread(target=reset)
            thread.start()
            with (
                contextlib.suppress(ConnectionError),
                tcp.connect("127.0.0.1", listener.getsockname()[1], 60) as sock,
            ):
                assert sock.recv(1) == b""
            thread.join()
        gc.collect()
    assert not told, "every socket was closed"
