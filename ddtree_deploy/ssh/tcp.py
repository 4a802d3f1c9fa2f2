"""A TCP connection: bounded, sending at once, and noticing a peer that has gone. Knows nothing of SSH."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

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


class Legible:
    """A socket on which all that comes before the SSH version is ASCII.

    A server may say what it likes there (RFC 4253, 4.2), in whatever bytes; the SSH library wants UTF-8.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._line = b""  # as far as it has come
        self._over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, count: int) -> bytes:
        data = self._sock.recv(count)
        seen = b""
        while data and not self._over:
            line, end, rest = data.partition(b"\n")
            self._line += line[:4]
            self._over = self._line.startswith(b"SSH-")
            if not self._over:
                seen, data = seen + (line + end).translate(_ASCII), rest
                self._line = b"" if end else self._line
        return seen + data


_ASCII = bytes(byte if byte < 0x80 else ord("?") for byte in range(256))


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
