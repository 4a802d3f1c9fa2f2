"""The first host is called while the rest of the program is loaded: both take as long as each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from ddtree_deploy import signals, tcp
from ddtree_deploy.commands import inputs
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory import Host, Inventory

if TYPE_CHECKING:
    import socket

    from ddtree_deploy.ssh import Link

T = TypeVar("T")


class Called:
    """The hosts of a command; the first of them is being dialed."""

    def __init__(self, inventory: Inventory, chosen: list[Host]) -> None:
        self.inventory = inventory
        self.chosen = chosen
        self._dialed: dict[str, Future[socket.socket]] = {}
        self._lines: dict[str, Future[Link]] = {}
        for host in chosen[:1]:
            dial = partial(tcp.connect, host.address, host.port, host.connect_timeout_s)
            self._dialed[host.name] = _begin(dial)

    def log_in(self) -> None:
        """All that was given is in order: the host that was dialed may know who we are."""
        from ddtree_deploy import ssh

        for host in self.chosen[:1]:
            try:
                host.secrets()
            except InputError:
                continue  # the run itself will say so, and ask nobody
            dialed = self._dialed.pop(host.name)
            self._lines[host.name] = _begin(partial(ssh.connect, host, dialed.result))

    def connect(self, host: Host) -> Link:
        """A new connection, or the one that is on its way. Raises what its call raised."""
        from ddtree_deploy import ssh

        begun = self._lines.pop(host.name, None)
        return begun.result() if begun is not None else ssh.connect(host)

    def hang_up(self) -> None:
        """Close what nobody has asked for."""
        for socket in self._dialed.values():
            socket.add_done_callback(_close)
        for line in self._lines.values():
            line.add_done_callback(_close)


@contextlib.contextmanager
def call(target: str | None, hosts: Path | None) -> Iterator[Called]:
    """The hosts of `target`, the first of them dialed; no target, no call.

    Raises InputError for hosts.yaml and target.
    """
    inventory = inputs.load_hosts(hosts)
    called = Called(inventory, inventory.resolve(target) if target is not None else [])
    try:
        with signals.ending_at_once():  # until a run is in sight, which has its own way with them
            yield called
    finally:
        called.hang_up()


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
