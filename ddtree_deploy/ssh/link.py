"""A connection to a host: run commands on it, and never wait without a bound."""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import paramiko

from ddtree_deploy.ssh import become
from ddtree_deploy.ssh.errors import translate, transport_error
from ddtree_deploy.ssh.host import SshHost, login_name
from ddtree_deploy.ssh.stream import Finished, LinkLost, Stream, StreamEnded, Traffic, Unbegun, Watchdog

EXEC_S = 30.0
SEND_S = 120.0  # for what a program reads before it answers: some 150 kB
NOTICE_S = 3.0  # after so much silence we say what we wait for
LOGIN_S = 20.0  # beside its connect_timeout: for login shell, sudo and interpreter of a host
OUTPUT_LIMIT = 256 << 20
NOISE_LIMIT = 64 << 10
FLOOD_LIMIT = 128 << 20
Tell = Callable[[str], None]


@dataclass(frozen=True)
class _Wait:
    """What is waited for: a mark in a line, for how long, and what that means to people."""

    mark: bytes
    limit_s: float
    what: str
    stage: str


@dataclass
class Link:
    """An authenticated connection to one host."""

    host: SshHost
    connection: Any
    tell: Tell  # what the user should know: what is waited for, what was passed over
    traffic: Traffic = field(default_factory=Traffic)

    def command(self, python: str, *args: str) -> str:
        """The shell command that runs the host's Python: a leading `~` is expanded there, the rest quoted."""
        return " ".join([*become.words(self.host), _quote_path(python), *(shlex.quote(a) for a in args)])

    def stream(self, command: str, *, stage: str = "ssh") -> Stream:
        """Start a command. Raises TransportError when the host does not start it within 30 s."""
        transport: paramiko.Transport = self.connection.transport
        notice = f"waiting for the host to open a session, {EXEC_S:.0f} s at most"
        with Watchdog(NOTICE_S, lambda: self.tell(notice)), Watchdog(EXEC_S, self.abort) as dog:
            try:
                channel = transport.open_session(timeout=EXEC_S)
                channel.exec_command(command)
            except Exception as error:
                if dog.bitten or isinstance(error, TimeoutError):
                    error = TimeoutError(f"the host did not start a command within {EXEC_S:.0f} s")
                raise translate(error, self.host, stage) from error
        self.traffic.execs += 1
        stream = Stream(channel, self.traffic, self.abort)
        first = become.first_input(self.host, command)
        if first:
            try:
                stream.send(first)
            except LinkLost as error:
                raise transport_error(self.host, stage, str(error)) from error
        return stream

    def run(self, command: str, stdin: bytes = b"", *, timeout: float, stage: str = "ssh") -> Finished:
        """Run a command to its end, feeding stdin and draining both outputs at the same time.

        Raises:
            TransportError: it could not be started, the connection was lost, or `timeout` seconds went by.
        """
        deadline = time.monotonic() + timeout
        stream = self.stream(command, stage=stage)
        stream.error_limit = OUTPUT_LIMIT
        with self._bounded(f"no answer within {timeout:.0f} s", deadline, stage) as dog:
            self._feed(stream, stdin, dog)
            with contextlib.suppress(LinkLost):
                stream.end_input()
            return self._end_of(stream, b"", deadline, stage)

    def ask(
        self, command: str, *stdin: bytes, begun: bytes, answer: bytes, timeout: float, stage: str
    ) -> tuple[Stream, bytes | Finished]:
        """Start a command and wait for its line with `answer`; the command goes on after it.

        stdin: each part is a packet of its own: the host sees nothing of one that has not arrived whole.
        begun: what the command says first. Until then it is login shell, sudo and interpreter that take their
            time: the host's connect_timeout and 20 s, at most.
        timeout: seconds from there to the answer.

        Returns the command, and the rest of the answer's line, or how the command ended without one.

        Raises:
            TransportError: it could not be started, the connection was lost, or time was up.
        """
        shell = f"the login shell of {login_name(self.host)}{' and sudo' if self.host.become else ''}"
        limit = self.host.connect_timeout_s + LOGIN_S
        stream = self.stream(command, stage=stage)
        wait = _Wait(
            begun, limit, f"{shell} to start Python (does a login file wait, or read its input?)", stage
        )
        said = self._wait_for(stream, wait, *stdin)
        if isinstance(said, Finished):
            return stream, Unbegun(said.rc, said.out, said.err)
        wait = _Wait(answer, timeout, "Python there to say what the host is", stage)
        return stream, self._wait_for(stream, wait)

    def _wait_for(self, stream: Stream, wait: _Wait, *stdin: bytes) -> bytes | Finished:
        """The rest of the line with the mark in it, or how the command ended without one."""
        notice = f"waiting for {wait.what}, {wait.limit_s:.0f} s at most"
        late = f"waited {wait.limit_s:.0f} s in vain for {wait.what}"
        unsent = f"what was sent did not arrive within {SEND_S:.0f} s"
        with Watchdog(NOTICE_S, lambda: self.tell(notice)):
            with self._bounded(unsent, time.monotonic() + SEND_S, wait.stage) as dog:
                for part in stdin:
                    self._feed(stream, part, dog)
            deadline = time.monotonic() + wait.limit_s
            with self._bounded(late, deadline, wait.stage):
                return self._answer(stream, wait, deadline)

    def _answer(self, stream: Stream, wait: _Wait, deadline: float) -> bytes | Finished:
        noise, before = b"", self.traffic.received
        while True:
            try:
                line = stream.line(max(0.0, deadline - time.monotonic()))
            except StreamEnded:
                return self._end_of(stream, noise, deadline, wait.stage)
            if line is None:
                raise LinkLost("no answer in time")
            _, found, rest = line.partition(wait.mark)  # a login file may have begun the line
            if found:
                return rest
            noise = (noise + line + b"\n")[-NOISE_LIMIT:]
            if self.traffic.received - before > FLOOD_LIMIT:
                raise LinkLost(f"the host printed {FLOOD_LIMIT >> 20} MiB, and no answer among it")

    @contextlib.contextmanager
    def _bounded(self, late: str, deadline: float, stage: str) -> Iterator[Watchdog]:
        """Break the connection at `deadline`; its loss is a TransportError, which says `late` then."""
        with Watchdog(deadline - time.monotonic(), self.abort) as dog:
            try:
                yield dog
            except LinkLost as error:
                over = dog.bitten or time.monotonic() >= deadline
                raise transport_error(self.host, stage, late if over else str(error)) from error

    def _feed(self, stream: Stream, data: bytes, dog: Watchdog) -> None:
        """A command may end without reading its stdin; what it wrote says why. Raises LinkLost else."""
        try:
            stream.send(data)
        except LinkLost:
            if dog.bitten or not self.alive:
                raise

    def _end_of(self, stream: Stream, before: bytes, deadline: float, stage: str) -> Finished:
        """All the rest of a command's output, and its exit status."""
        out = before + stream.read_all(deadline, OUTPUT_LIMIT)
        rc = stream.exit_status(max(0.0, deadline - time.monotonic()))
        if rc is None and not self.alive:
            raise LinkLost("the connection was lost")
        finished = Finished(rc, out, stream.stderr)
        stream.close()
        return finished

    @property
    def alive(self) -> bool:
        """False once the connection is known to have ended; a frozen host still counts as alive."""
        transport = self.connection.transport
        return bool(transport is not None and transport.is_active())

    def abort(self) -> None:
        """Break the connection at once, from any thread; every wait on it ends."""
        shutdown(self.connection.connect_kwargs["sock"])

    def close(self) -> None:
        """Close the connection; never blocks for long, never raises."""
        self.abort()
        try:
            self.connection.close()
        except Exception:
            logging.getLogger(__name__).debug("closing the connection to %s", self.host.name, exc_info=True)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _quote_path(path: str) -> str:
    home = re.match(r"~[A-Za-z0-9._-]*/", path)
    return home.group() + shlex.quote(path[home.end() :]) if home else shlex.quote(path)


def shutdown(sock: socket.socket) -> None:
    """Break a connection, from any thread, without blocking."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
