"""Network namespaces: the controller's, a hub with a bridge, one per host.

    controller 10.98.0.1 ---- 10.98.0.2 hub 10.99.0.1 (bridge) ---- 10.99.0.11 host 1
               10.98.1.1 ~~~~ 10.98.1.2     (the WAN, only while one is up)   10.99.0.12 host 2

No address exists outside these namespaces. What goes between controller and hosts is forwarded by the hub:
there the faults are made.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.lab.registry import Record

CLONE_NEWNET = 0x40000000
CONTROLLER = "10.98.0.1"
CONTROLLER_WAN = "10.98.1.1"
HUB_WAN = "10.98.1.2"
_libc = ctypes.CDLL("libc.so.6", use_errno=True)


def _setns(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Put this thread, and the threads and children it starts, into a network namespace."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        _setns(there)
        yield
    finally:
        _setns(back)
        os.close(there)
        os.close(back)


def enter_for_good(namespace: str) -> None:
    """Put this process, which has one thread, into a network namespace."""
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    _setns(there)
    os.close(there)


def run(*argv: str | Path) -> str:
    """Run a program that must succeed; its output."""
    done = subprocess.run([str(a) for a in argv], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def enter(namespace: str) -> list[str]:
    """The words before a command to run in `namespace`; unlike `ip netns exec` they leave /sys as it is."""
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


class Net:
    """The namespaces of one lab."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.controller = f"{record.lab}c"
        self.hub = f"{record.lab}b"
        for name in (self.controller, self.hub):
            self._namespace(name)
        # This machine's table of connections is made for many; /proc/net/tcp walks all of it at each read.
        small = "/proc/sys/net/ipv4/tcp_child_ehash_entries"
        run(*enter(self.controller), "sh", "-c", f"if [ -e {small} ]; then echo 256 > {small}; fi")
        ip, hub, controller = "ip", ["-n", self.hub], ["-n", self.controller]
        run(ip, *controller, "link", "add", "hub", "type", "veth", "peer", "name", "ctl", "netns", self.hub)
        run(ip, *controller, "addr", "add", f"{CONTROLLER}/30", "dev", "hub")
        run(ip, *controller, "link", "set", "hub", "up")
        run(ip, *controller, "route", "add", "10.99.0.0/24", "via", "10.98.0.2")
        run(ip, *hub, "addr", "add", "10.98.0.2/30", "dev", "ctl")
        run(ip, *hub, "link", "set", "ctl", "up")
        run(ip, *hub, "link", "add", "br0", "type", "bridge")
        run(ip, *hub, "addr", "add", "10.99.0.1/24", "dev", "br0")
        run(ip, *hub, "link", "set", "br0", "up")
        run(*enter(self.hub), "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def _namespace(self, name: str, parent: str = "") -> None:
        self._record.add("netns", name)
        run(*(enter(parent) if parent else []), "ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def attach(self, number: int) -> tuple[str, str]:
        """A namespace on the bridge for host `number` (1..200): its name and its address."""
        name, address = f"{self._record.lab}h{number}", f"10.99.0.{10 + number}"
        self._namespace(name, self.controller)
        port = self.port(number)
        run("ip", "-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "-n", self.hub, "link", "set", port, "master", "br0", "up")
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "route", "add", "default", "via", "10.99.0.1")
        return name, address

    @staticmethod
    def port(number: int) -> str:
        """The bridge's end of the cable of host `number`."""
        return f"h{number}"

    def cable(self, number: int, *, up: bool) -> None:
        """Plug or unplug a host."""
        run("ip", "-n", self.hub, "link", "set", self.port(number), "up" if up else "down")

    @staticmethod
    def forget_sockets(namespace: str) -> None:
        """Drop what the kernel keeps of connections whose processes are dead (while the cable is out)."""
        run(*enter(namespace), "ss", "--kill", "--tcp", "--all")

    @contextlib.contextmanager
    def rule(self, *words: str) -> Iterator[None]:
        """A rule at the head of the hub's FORWARD chain, while the block runs."""
        chain = ["iptables", "--wait"]
        run(*enter(self.hub), *chain, "--insert", "FORWARD", *words)
        try:
            yield
        finally:
            run(*enter(self.hub), *chain, "--delete", "FORWARD", *words)

    def route(self, *, wan: bool) -> None:
        """Lead new connections from the controller through the WAN, or over the plain cable."""
        hop = [HUB_WAN, "src", CONTROLLER_WAN] if wan else ["10.98.0.2"]
        run("ip", "-n", self.controller, "route", "replace", "10.99.0.0/24", "via", *hop)
