"""A TCP connection: bounded, sending at once, and noticing a peer that has gone. Knows nothing of SSH but its
first line; the library takes as long to load as this takes to connect.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
# Each side of an SSH connection begins by saying what it is, and waits for nothing (RFC 4253, 4.2). A server
# answers with the keys that it offers: a round trip that costs nothing while the library loads.
IDENTIFICATION = "SSH-2.0-ddtree_deploy"


class _Prompt(socket.socket):
    """Acknowledges at once what it gets: a peer with Nagle's algorithm, as sshd is until a command has begun,
    holds a small packet back until the one before is acknowledged, for which others wait up to 40 ms.

    `said`: what was sent ahead. Whoever sends it, as the first thing, has sent it.
    """

    said = b""

    def send(self, data: Any, flags: int = 0) -> int:
        if self.said:
            said, self.said = self.said, b""
            if data != said:
                raise OSError(errno.EPROTO, "something else was said ahead")
            return len(said)
        sent = super().send(data, flags)
        if hasattr(socket, "TCP_QUICKACK"):  # Linux; the kernel forgets it when something is sent
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return sent


def connect(address: str, port: int, seconds: float) -> socket.socket:
    """A connection on which our `IDENTIFICATION` has been sent; who writes that line writes it for nothing.

    Raises OSError.
    """
    deadline = time.monotonic() + seconds
    found = bounded(
        lambda: socket.getaddrinfo(address, port, type=socket.SOCK_STREAM),
        seconds,
        f"the name {address} was not resolved within {seconds:.0f} s",
    )
    hello = f"{IDENTIFICATION}\r\n".encode()
    problem: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for family, kind, protocol, _, place in found:
        sock = _Prompt(family, kind, protocol)
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            sock.connect(place)
            _set_up(sock)
            sock.sendall(hello)
        except OSError as error:
            sock.close()
            problem = error
            continue
        sock.said = hello
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
