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
    from ddtree_deploy.ssh import Link

T = TypeVar("T")


class Called:
    """The hosts of a command; the first of them is being called."""

    def __init__(self, inventory: Inventory, chosen: list[Host]) -> None:
        self.inventory = inventory
        self.chosen = chosen
        self._call = _Call(chosen[0]) if chosen else None

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


class _Call:
    """A host on the line: TCP while the SSH library loads, keys exchanged while the input is read."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.may_log_in: Future[None] = Future()
        dialed = _begin(partial(tcp.connect, host.address, host.port, host.connect_timeout_s))
        from ddtree_deploy import ssh

        self.line = _begin(partial(ssh.connect, host, dialed.result, self.may_log_in.result))


@contextlib.contextmanager
def call(target: str | None, hosts: Path | None) -> Iterator[Called]:
    """The hosts of `target`, the first of them called; no target, no call.

    Raises InputError for hosts.yaml and target.
    """
    inventory = inputs.load_hosts(hosts)
    chosen = inventory.resolve(target) if target is not None else []
    with signals.ending_at_once():  # until a run is in sight, which has its own way with them
        called = Called(inventory, chosen)
        try:
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


def _close(call: Future[Link]) -> None:
    if call.exception() is None:
        call.result().close()
