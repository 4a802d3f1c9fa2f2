"""A TCP connection to a host, before anybody speaks SSH on it."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import threading
import warnings
from collections.abc import Iterator

import pytest

from ddtree_deploy.ssh import tcp

pytestmark = pytest.mark.starts


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60)
        yield made


def test_it_sends_at_once_and_notices_a_peer_that_has_gone(listener: socket.socket) -> None:
    with tcp.connect("127.0.0.1", listener.getsockname()[1], 60) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_a_peer_that_hangs_up_at_once_is_a_problem_of_the_network(listener: socket.socket) -> None:
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
