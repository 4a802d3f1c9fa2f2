"""The first host is called while the rest of the program is loaded: both take as long as each other.

A connection is opened as soon as hosts.yaml seems to say where to, keys are exchanged once hosts.yaml makes
sense, and who we are is said once all input does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from ddtree_deploy.commands import inputs
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.yaml.values import parse_positive
from ddtree_deploy.running import signals
from ddtree_deploy.ssh import tcp

if TYPE_CHECKING:
    import socket

    from ddtree_deploy.inputs.inventory import Host, Inventory
    from ddtree_deploy.inputs.yaml.document import Document
    from ddtree_deploy.ssh import Link

T = TypeVar("T")
Place = tuple[str, int, float]  # address, port, seconds to connect within


class Called:
    """The hosts of a command; the first of them is being called."""

    def __init__(self, inventory: Inventory, chosen: list[Host], dialed: _Dialed) -> None:
        self.inventory = inventory
        self.chosen = chosen
        self._call = _Call(chosen[0], dialed) if chosen else None

    def log_in(self) -> None:
        """All that was given is in order: the host that was called may know who we are."""
        if self._call is None:
            return
        try:
            self._call.host.secrets()
        except InputError:
            self.hang_up()  # the run itself will say so, and ask nobody
        else:
            self._call.may_log_in.set_result(None)

    def connect(self, host: Host) -> Link:
        """A new connection, or the one that is on its way. Raises what its call raised."""
        from ddtree_deploy import ssh

        call = self._call
        if call is None or call.host.name != host.name:
            return ssh.connect(host)
        self._call = None
        return call.line.result()

    def hang_up(self) -> None:
        """Close what nobody has asked for."""
        call, self._call = self._call, None
        if call is not None:
            call.may_log_in.cancel()
            call.line.add_done_callback(_close)


class _Dialed:
    """A TCP connection to where hosts.yaml seems to lead."""

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self._sock = _dial(place) if place else None

    def take(self, place: Place) -> Future[socket.socket]:
        """This connection, once, if it leads there; else a new one."""
        if place != self.place:
            self.hang_up()
        sock, self._sock = self._sock, None
        return sock or _dial(place)

    def hang_up(self) -> None:
        """Close what nobody has taken."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.add_done_callback(_close)


class _Call:
    """A host on the line: the SSH library loads meanwhile, and keys are exchanged while the input is read."""

    def __init__(self, host: Host, dialed: _Dialed) -> None:
        self.host = host
        self.may_log_in: Future[None] = Future()
        sock = dialed.take((host.address, host.port, host.connect_timeout_s))
        from ddtree_deploy import ssh

        self.line = _begin(partial(ssh.connect, host, sock.result, self.may_log_in.result))


@contextlib.contextmanager
def call(target: str | None, hosts: Path | None) -> Iterator[Called]:
    """The hosts of `target`, the first of them called; no target, no call.

    Raises InputError for hosts.yaml and target.
    """
    doc = inputs.read_hosts(hosts)
    with signals.ending_at_once(), contextlib.ExitStack() as ends:  # until a run has its own way with signals
        dialed = _Dialed(_place(doc, target))
        ends.callback(dialed.hang_up)
        inventory = inputs.check_hosts(doc)
        called = Called(inventory, inventory.resolve(target) if target is not None else [], dialed)
        ends.callback(called.hang_up)
        yield called


def _place(doc: Document, target: str | None) -> Place | None:
    """Where a host is, if hosts.yaml says so plainly. Whether all that it says makes sense is seen later."""
    hosts = doc.data.get("hosts")
    entry = hosts.get(target) if isinstance(hosts, dict) else None
    defaults = doc.data.get("defaults") or {}
    if not isinstance(entry, dict) or not isinstance(defaults, dict):
        return None
    entry = {"port": 22, **defaults, **entry}
    address, port = entry.get("address"), entry["port"]
    if not isinstance(address, str) or not address or type(port) is not int or not 0 < port < 65536:
        return None
    try:
        seconds = parse_positive(entry["connect_timeout"]) if "connect_timeout" in entry else tcp.CONNECT_S
    except ValueError:
        return None
    return address, port, seconds


def _dial(place: Place) -> Future[socket.socket]:
    return _begin(partial(tcp.connect, *place))


def _begin(call: Callable[[], T]) -> Future[T]:
    """Call it in a thread that keeps nobody from leaving."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future


def _close(call: Future[Link] | Future[socket.socket]) -> None:
    if call.exception() is None:
        call.result().close()
