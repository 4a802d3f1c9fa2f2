"""A WAN between controller and hosts, in user space: two TUN devices, and a line with delay, loss and rate.

Kernels without netem need it; it is accurate to about a millisecond. As a program, `wan.py NETNS_A NETNS_B`
makes `wan0` in both namespaces, prints `ready`, and takes settings on stdin, JSON lines, each answered `ok`:

    {"delay_ms": one way, "jitter_ms": 0, "loss": 0..1, "rate": bytes/s or 0, "cut": false}

End of file ends it, and with it the devices.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import net

if TYPE_CHECKING:
    from tests.lab.hosts import Lab

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
QUEUE_S = 0.4  # what the line's queue holds at its rate, before it drops
BURST = 64  # packets read from one side before the other gets its turn


@dataclass
class Line:
    """How the WAN behaves. Changed while packets are under way, it holds for those that come after."""

    delay_ms: float = 0.0  # one way
    jitter_ms: float = 0.0
    loss: float = 0.0
    rate: float = 0.0  # bytes per second, each way; 0: no limit
    cut: bool = False


class Direction:
    """One way of the line: packets that wait for their time, in order."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.free_at = 0.0  # when the line has sent what it took
        self.last_due = 0.0

    def take(self, line: Line) -> None:
        for _ in range(BURST):
            try:
                packet = os.read(self.source, 65535)
            except BlockingIOError:
                return
            if line.cut or (line.loss and random.random() < line.loss):
                continue
            due = time.monotonic()
            if line.rate:
                start = max(due, self.free_at)
                if start - due > QUEUE_S:
                    continue
                due = self.free_at = start + len(packet) / line.rate
            due += (line.delay_ms + random.random() * line.jitter_ms) / 1e3
            self.last_due = due = max(due, self.last_due)  # a line does not reorder
            self.waiting.append((due, packet))

    def give(self) -> float | None:
        """Deliver what is due; seconds until the next packet is, or None."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic()
            if left > 0:
                return left
            _, packet = self.waiting.popleft()
            with contextlib.suppress(OSError):  # the device is down: lost
                os.write(self.sink, packet)
        return None


def tun(namespace: str) -> int:
    """A TUN device `wan0` in a namespace, as a file that gives and takes one packet at a time."""
    with net.inside(namespace):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"wan0", IFF_TUN_NO_PI))
        subprocess.run(["ip", "link", "set", "wan0", "mtu", "1500", "txqueuelen", "5000", "up"], check=True)
    return fd


def carry(a: int, b: int) -> None:
    """Carry packets until stdin ends."""
    line = Line()
    there, back = Direction(a, b), Direction(b, a)
    print("ready", flush=True)
    while True:
        waits = [w for w in (there.give(), back.give()) if w is not None]
        ready, _, _ = select.select([0, a, b], [], [], min(waits) if waits else None)
        if a in ready:
            there.take(line)
        if b in ready:
            back.take(line)
        if 0 in ready:
            text = sys.stdin.readline()
            if not text:
                return
            line = Line(**json.loads(text))
            print("ok", flush=True)


class Wan:
    """The WAN of a lab, while it is up."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def set(self, **line: float) -> None:
        """Change the line: the fields of `Line`; what is not named is at rest."""
        self._say(json.dumps(asdict(Line(**line))), "ok")  # type: ignore[arg-type]

    def _say(self, text: str, answer: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if text:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()
        heard = self._process.stdout.readline().strip()
        if heard != answer:
            raise RuntimeError(f"the WAN said {heard!r}, not {answer!r}")


@contextlib.contextmanager
def wan(lab: Lab, **line: float) -> Iterator[Wan]:
    """Lead the controller's new connections through a WAN; `wan(lab, delay_ms=50)`: RTT 100 ms."""
    controller, hub = lab.net.controller, lab.net.hub
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lab.wan", controller, hub],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        link = Wan(process)
        link._say("", "ready")
        net.run("ip", "-n", controller, "addr", "add", f"{net.CONTROLLER_WAN}/30", "dev", "wan0")
        net.run("ip", "-n", hub, "addr", "add", f"{net.HUB_WAN}/30", "dev", "wan0")
        lab.net.route(wan=True)
        link.set(**line)
        yield link
    finally:
        lab.net.route(wan=False)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


if __name__ == "__main__":
    carry(tun(sys.argv[1]), tun(sys.argv[2]))
