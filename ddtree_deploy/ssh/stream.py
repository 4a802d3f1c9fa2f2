"""A command on the far side of an SSH channel: both outputs drained at once, a bound on every wait.

Knows nothing of the SSH library: `Channel` is the part of paramiko's channel that is used here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

CHUNK = 65536
# One line of JSON is far below this; more without a newline is not our protocol.
LINE_LIMIT = 64 << 20
ERROR_TAIL = 256 << 10


class LinkLost(Exception):
    """The connection ended, or nothing moved for too long, while a command was running. The host goes on."""


class StreamEnded(Exception):
    """The command closed its output."""


@dataclass(frozen=True)
class Finished:
    """A command that ended. `rc` is None when its exit status is unknown."""

    rc: int | None
    out: bytes
    err: bytes


class Unbegun(Finished):
    """A command that ended before the program in it had said that it begins."""


class Channel(Protocol):
    """What is used of `paramiko.Channel`."""

    status_event: threading.Event
    exit_status: int

    def recv(self, nbytes: int) -> bytes: ...
    def recv_stderr(self, nbytes: int) -> bytes: ...
    def send(self, s: Any) -> int: ...
    def shutdown_write(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Traffic:
    """What a link carried: commands started, bytes of their stdin, bytes of their stdout and stderr."""

    execs: int = 0
    sent: int = 0
    received: int = 0


class Watchdog:
    """Calls `bite` once when `feed` was not called for `seconds`: for waits that take no deadline."""

    def __init__(self, seconds: float, bite: Callable[[], None]) -> None:
        self.seconds = seconds
        self.bitten = False
        self._bite = bite
        self._fed = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def feed(self) -> None:
        self._fed = time.monotonic()

    def _watch(self) -> None:
        while not self._done.wait(max(0.01, self._fed + self.seconds - time.monotonic())):
            if time.monotonic() >= self._fed + self.seconds:
                self.bitten = True
                self._bite()
                return

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join(1.0)  # after this nothing is bitten any more


class Stream:
    """One running command. Reading never blocks longer than asked; sending never longer than `stalled_s`.

    Args:
        channel: an open channel on which the command was started.
        traffic: counters to add to.
        abort: breaks the connection under the channel, from any thread, without blocking.
        stalled_s: how long the far side may take nothing of what is sent.
    """

    def __init__(
        self, channel: Channel, traffic: Traffic, abort: Callable[[], None], *, stalled_s: float = 30.0
    ) -> None:
        self._channel = channel
        self._traffic = traffic
        self._abort = abort
        self._stalled_s = stalled_s
        self._chunks: SimpleQueue[bytes] = SimpleQueue()
        self._rest = bytearray()
        self._searched = 0
        self._eof = False
        self._stderr = bytearray()
        self._lock = threading.Lock()
        self._pumps = [
            threading.Thread(target=self._pump, args=(channel.recv, self._chunks.put), daemon=True),
            threading.Thread(target=self._pump, args=(channel.recv_stderr, self._keep_error), daemon=True),
        ]
        for pump in self._pumps:
            pump.start()

    def send(self, data: bytes) -> None:
        """Write to the command's stdin. Raises LinkLost when the connection ends or stalls."""
        view = memoryview(data)
        with self._lock, Watchdog(self._stalled_s, self._abort) as dog:
            while view:
                try:
                    count = self._channel.send(view[:CHUNK])
                except (OSError, EOFError) as error:
                    raise LinkLost(self._why_unsent(dog, error)) from error
                if count == 0:
                    raise LinkLost(self._why_unsent(dog, None))
                dog.feed()
                self._traffic.sent += count
                view = view[count:]

    def _why_unsent(self, dog: Watchdog, error: BaseException | None) -> str:
        if dog.bitten:
            return f"the host took nothing of what was sent for {self._stalled_s:.0f} s"
        return f"the connection ended while sending ({error or 'channel closed'})"

    def end_input(self) -> None:
        """Close the command's stdin."""
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError) as error:
            raise LinkLost(f"the connection ended ({error})") from error

    def line(self, timeout: float) -> bytes | None:
        """The next whole line without its newline, or None if there was none within `timeout` seconds.

        Raises StreamEnded when the output is at its end; an unfinished last line is dropped then (`rest`).
        """
        deadline = time.monotonic() + timeout
        while True:
            end = self._rest.find(b"\n", self._searched)
            if end >= 0:
                found = bytes(self._rest[:end])
                del self._rest[: end + 1]
                self._searched = 0
                return found
            self._searched = len(self._rest)
            if self._eof:
                raise StreamEnded
            if self._searched > LINE_LIMIT:
                raise LinkLost(f"the host sent a line of more than {LINE_LIMIT >> 20} MiB")
            try:
                chunk = self._chunks.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return None
            self._eof = not chunk
            self._rest += chunk

    def rest(self) -> bytes:
        """What came after the last newline, once the stream has ended."""
        return bytes(self._rest)

    def read_all(self, deadline: float, limit: int) -> bytes:
        """All up to the end of the output. Raises LinkLost after `deadline` (monotonic) or `limit` bytes."""
        while not self._eof:
            try:
                chunk = self._chunks.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise LinkLost("the command did not end in time") from None
            self._eof = not chunk
            self._rest += chunk
            if len(self._rest) > limit:
                raise LinkLost(f"the command wrote more than {limit >> 20} MiB")
        return bytes(self._rest)

    @property
    def stderr(self) -> bytes:
        """The tail of what the command wrote to stderr so far (all of it, after the end of the stream)."""
        if self._eof:
            self._pumps[1].join(5.0)
        return bytes(self._stderr)

    def exit_status(self, timeout: float = 10.0) -> int | None:
        """The command's exit status; None when it is unknown (connection lost, or ended by a signal)."""
        self._channel.status_event.wait(timeout)
        status = self._channel.exit_status
        return None if status < 0 else status

    def close(self) -> None:
        """Close the channel. The command on the host is not ended by this: it only loses its streams."""
        with Watchdog(5.0, self._abort):
            self._channel.close()

    def _keep_error(self, chunk: bytes) -> None:
        self._stderr += chunk
        if len(self._stderr) > self.error_limit:
            del self._stderr[: -self.error_limit]

    error_limit = ERROR_TAIL

    def _pump(self, receive: Callable[[int], bytes], keep: Callable[[bytes], None]) -> None:
        while True:
            try:
                chunk = receive(CHUNK)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                chunk = b""
            self._traffic.received += len(chunk)
            keep(chunk)
            if not chunk:
                return
