"""Who answers at the service's endpoint: a process of the service, or somebody in between."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from urllib.parse import urlsplit

from ..wire.facts import ServiceFacts
from . import proc
from .base import Footprint, ServiceControl

_PYTHON = re.compile(r"(python|pypy)[\d.]*")


def described(control: ServiceControl) -> ServiceFacts:
    """The service as it is; a problem, too, that somebody else answers for one that runs."""
    with control.one_look():
        facts = control.describe()
        if facts.problem or facts.container:
            return facts
        runs = facts.state in ("active", "activating")
        other, unknown = look(control)
    if other and runs:
        return dataclasses.replace(facts, problem=control.mask(other))
    said = [control.mask(text) for text in (other, unknown) if text]
    return dataclasses.replace(facts, warnings=[*facts.warnings, *said])


def look(control: ServiceControl) -> tuple[str, str]:
    """(who listens at the endpoint and is no process of the service, why that cannot be told), for people.

    Both are "" where there is nothing to say; nobody at all is nothing: it may be loading.
    """
    port = control.endpoint.port
    inodes = sockets(control.endpoint.url, port)
    holders = proc.holding(inodes)
    # After the holders: what they have forked by now belongs to one that is seen already.
    seen = control.processes()
    strangers = {pid for pid in holders - {pid for pid, _ in seen.members} if proc.read(pid)}
    if 1 in strangers and control.socket_unit():
        strangers.discard(1)  # the service's own socket, which systemd holds for it
    if strangers:
        return f"{_named(min(strangers), port)}, no process of the service", ""
    if inodes and not holders:
        return "", f"who listens on port {port} may not be seen"
    if holders and control.service.kind == "adopted" and not _runs_python(seen.main):
        return f"{_named(seen.main, port)}, and that is no Python: a proxy is not the service", ""
    if not inodes and _elsewhere(seen, port):
        return (
            f"the service has a network of its own (PrivateNetwork=): its port {port} is not this host's",
            "",
        )
    return "", ""


def sockets(url: str, port: int) -> set[str]:
    """Inodes of the sockets that take a connection to the endpoint: of its address, else of any address."""
    there = [(inode, address) for inode, p, address in proc.listening() if p == port]
    for wanted in _addresses(url, port):
        for one in (wanted, bytes(4), bytes(16)) if len(wanted) == 4 else (wanted, bytes(16)):
            if found := {inode for inode, address in there if address == one}:
                return found
    return set()


def _addresses(url: str, port: int) -> list[bytes]:
    """In the order in which they are tried."""
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [socket.inet_pton(family, str(place[0]).partition("%")[0]) for family, *_, place in found]


def _named(pid: int, port: int) -> str:
    ends = (path.rsplit("/", 1)[-1] for path in proc.cgroups(pid))
    unit = next((f" of unit {end}" for end in ends if end.endswith((".service", ".scope"))), "")
    if pid == 1:
        unit = ", systemd itself for a socket unit"
    return f"the endpoint's listener (port {port}) is process {pid} ({proc.command(pid)}){unit}"


def _runs_python(pid: int) -> bool:
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return True  # it may not be seen
    return bool(_PYTHON.fullmatch(os.path.basename(program.removesuffix(" (deleted)"))))


def _elsewhere(seen: Footprint, port: int) -> bool:
    """The port is open in a network namespace of the service's own."""
    try:
        own = os.readlink(f"/proc/{seen.main}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False
    return not own and any(p == port for _, p, _ in proc.listening(seen.main))
