"""The first host is called while the rest of the program is loaded: both take as long as each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from ddtree_deploy.commands import inputs
from ddtree_deploy.inputs.inventory import Host, Inventory

if TYPE_CHECKING:
    from ddtree_deploy.ssh import Link


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
    from ddtree_deploy import ssh

    waiting: dict[str, Future[Link]] = {}
    for host in chosen[:1]:
        waiting[host.name] = _begin(ssh.connect, host)

    def connect(host: Host) -> Link:
        begun = waiting.pop(host.name, None)
        return begun.result() if begun is not None else ssh.connect(host)

    try:
        yield Called(inventory, chosen, connect)
    finally:
        for begun in waiting.values():
            begun.add_done_callback(_close)


def _begin(connect: Callable[[Host], Link], host: Host) -> Future[Link]:
    future: Future[Link] = Future()

    def work() -> None:
        try:
            future.set_result(connect(host))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, daemon=True, name=f"call {host.name}").start()
    return future


def _close(call: Future[Link]) -> None:
    if call.exception() is None:
        call.result().close()
