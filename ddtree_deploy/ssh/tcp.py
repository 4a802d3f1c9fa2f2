"""A TCP connection: bounded, sending at once, and noticing a peer that has gone. Knows nothing of SSH."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def connect(address: str, port: int, seconds: float) -> socket.socket:
    """A connection to the first address that answers. Raises OSError."""
    deadline = time.monotonic() + seconds
    found = bounded(
        lambda: socket.getaddrinfo(address, port, type=socket.SOCK_STREAM),
        seconds,
        f"the name {address} was not resolved within {seconds:.0f} s",
    )
    problem: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for family, kind, protocol, _, place in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            sock.connect(place)
            _set_up(sock)
        except OSError as error:
            sock.close()
            problem = error
            continue
        return sock
    raise problem


def _set_up(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Linux names; elsewhere our own heartbeats do the work alone.
    for option, value in (
        ("TCP_USER_TIMEOUT", 30_000),
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def bounded(call: Callable[[], T], seconds: float, message: str) -> T:
    """Run a call that has no time-out of its own in a thread, and give up on it after `seconds`."""
    box: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            box.append(call())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not box:
        raise TimeoutError(message)
    return box[0]
