"""The first host is called while the rest of the program is loaded: both take as long as each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from ddtree_deploy import tcp
from ddtree_deploy.commands import inputs
from ddtree_deploy.inputs.inventory import Host, Inventory

if TYPE_CHECKING:
    from ddtree_deploy.ssh import Link

T = TypeVar("T")


@dataclass(frozen=True)
class Called:
    """The hosts of a command. `connect` opens a connection, or hands out the one that is on its way."""

    inventory: Inventory
    chosen: list[Host]
    connect: Callable[[Host], Link]


@contextlib.contextmanager
def call(target: str | None, hosts: Path | None) -> Iterator[Called]:
    """The hosts of `target`, the first of them called; no target, no call. Whatever was not used is closed.

    Raises InputError for hosts.yaml and target; what the call raises comes when `connect` is asked.
    """
    inventory = inputs.load_hosts(hosts)
    chosen = inventory.resolve(target) if target is not None else []
    first = chosen[:1]
    dialed = {
        host.name: _begin(partial(tcp.connect, host.address, host.port, host.connect_timeout_s))
        for host in first
    }
    from ddtree_deploy import ssh

    waiting = {host.name: _begin(partial(ssh.connect, host, dialed[host.name].result)) for host in first}

    def connect(host: Host) -> Link:
        begun = waiting.pop(host.name, None)
        return begun.result() if begun is not None else ssh.connect(host)

    try:
        yield Called(inventory, chosen, connect)
    finally:
        for begun in waiting.values():
            begun.add_done_callback(_close)


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
