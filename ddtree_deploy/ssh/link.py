"""Connect strictly, run commands, never wait without a bound.

Host keys are checked by `known_hosts`, not by the library: fabric installs a policy that accepts any key, and
paramiko honours neither @revoked nor a second key type.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fabric  # type: ignore[import-untyped]
import paramiko

from ddtree_deploy.errors import HostKeyError, InputError, TransportError
from ddtree_deploy.ssh import become, known_hosts, tcp
from ddtree_deploy.ssh.auth import AUTH_S, CONNECTIONS_FOR_KEYS, SIGN_S, Keys
from ddtree_deploy.ssh.errors import host_key_error, translate, transport_error
from ddtree_deploy.ssh.host import SshHost, known_hosts_files, login_name
from ddtree_deploy.ssh.stream import Finished, LinkLost, Stream, StreamEnded, Traffic, Watchdog

EXEC_S = 30.0
OUTPUT_LIMIT = 256 << 20
NOISE_LIMIT = 64 << 10

# Without a handler Python prints the library's own tracebacks to stderr; its errors reach the user by ours.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass
class Link:
    """An authenticated connection to one host."""

    host: SshHost
    connection: Any
    traffic: Traffic = field(default_factory=Traffic)

    def command(self, python: str, *args: str) -> str:
        """The shell command that runs the host's Python: a leading `~` is expanded there, the rest quoted."""
        return " ".join([*become.words(self.host), _quote_path(python), *(shlex.quote(a) for a in args)])

    def stream(self, command: str, *, stage: str = "ssh") -> Stream:
        """Start a command. Raises TransportError when the host does not start it within 30 s."""
        transport: paramiko.Transport = self.connection.transport
        with Watchdog(EXEC_S, self.abort) as dog:
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
        with self._bounded(timeout, deadline, stage) as dog:
            self._feed(stream, stdin, dog)
            with contextlib.suppress(LinkLost):
                stream.end_input()
            return self._end_of(stream, b"", deadline, stage)

    def ask(
        self,
        command: str,
        *stdin: bytes,
        answer: bytes,
        timeout: float,
        stage: str,
    ) -> tuple[Stream, bytes | Finished]:
        """Start a command and wait for its line that begins with `answer`; the command goes on after it.

        Each part of `stdin` is a packet of its own: the host sees nothing of one that has not arrived whole.
        Returns the command, and the rest of that line, or how the command ended without one.

        Raises:
            TransportError: it could not be started, the connection was lost, or `timeout` seconds went by.
        """
        deadline = time.monotonic() + timeout
        stream = self.stream(command, stage=stage)
        noise = b""
        with self._bounded(timeout, deadline, stage) as dog:
            for part in stdin:
                self._feed(stream, part, dog)
            while True:
                try:
                    line = stream.line(max(0.0, deadline - time.monotonic()))
                except StreamEnded:
                    return stream, self._end_of(stream, noise, deadline, stage)
                if line is None:
                    raise LinkLost("no answer in time")
                if line.startswith(answer):
                    return stream, line.removeprefix(answer)
                noise = (noise + line + b"\n")[-NOISE_LIMIT:]

    @contextlib.contextmanager
    def _bounded(self, timeout: float, deadline: float, stage: str) -> Iterator[Watchdog]:
        """Break the connection after `timeout` seconds, at `deadline`; its loss is a TransportError."""
        with Watchdog(deadline - time.monotonic(), self.abort) as dog:
            try:
                yield dog
            except LinkLost as error:
                late = dog.bitten or time.monotonic() >= deadline
                why = f"no answer within {timeout:.0f} s" if late else str(error)
                raise transport_error(self.host, stage, why) from error

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
        _shutdown(self.connection.connect_kwargs["sock"])

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


def connect(host: SshHost) -> Link:
    """Open a connection to the host, with its key checked and ourselves authenticated.

    Raises:
        HostKeyError: the host's key is unknown, changed or revoked.
        TransportError: anything else that kept us out.
        InputError: the identity file of the host cannot be used.
    """
    refused: set[bytes] = set()
    for _ in range(CONNECTIONS_FOR_KEYS):
        strategy = Keys(host, refused)
        try:
            return _connect_once(host, strategy, _policy(host))
        except TransportError:
            if not strategy.more:
                raise
    raise transport_error(host, "authentication", f"the host refused all of the {len(refused)} keys tried")


def offered_key(host: SshHost) -> tuple[str, bytes]:
    """The key type and blob that the host presents, whatever is on file. Nothing is authenticated or sent."""
    seen: list[paramiko.PKey] = []

    class Look(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
            seen.append(key)
            raise HostKeyError("only looking")

    try:
        _connect_once(host, Keys(host, set()), Look()).close()
    except HostKeyError:
        return seen[0].get_name(), seen[0].asbytes()
    raise AssertionError("the policy refuses every key")


def _connect_once(host: SshHost, strategy: Keys, policy: paramiko.MissingHostKeyPolicy) -> Link:
    try:
        sock = tcp.connect(host.address, host.port, host.connect_timeout_s)
    except Exception as error:
        raise translate(error, host, "connect") from error
    wanted = known_hosts.algorithms(known_hosts.read(known_hosts_files(host)), host.address, host.port)

    connection = fabric.Connection(
        host.address,
        user=login_name(host),
        port=host.port,
        config=fabric.Config(overrides={"load_ssh_configs": False}, lazy=True),
        connect_timeout=host.connect_timeout_s + 5,
        connect_kwargs={
            "sock": sock,
            "transport_factory": partial(_transport, wanted),
            "auth_strategy": strategy,
            "banner_timeout": host.connect_timeout_s,
            "auth_timeout": AUTH_S + SIGN_S,
            "channel_timeout": EXEC_S,
        },
    )
    connection.client.set_missing_host_key_policy(policy)
    link = Link(host, connection)
    bound = host.connect_timeout_s + 5
    with Watchdog(bound, lambda: _shutdown(sock)) as dog:
        strategy.dog = dog
        try:
            connection.open()
        except BaseException as error:
            link.close()
            if isinstance(error, HostKeyError | InputError | KeyboardInterrupt):
                raise
            stage = "authentication" if strategy.begun else "connect"
            if dog.bitten:
                raise transport_error(
                    host, stage, f"the SSH handshake did not end within {dog.seconds:.0f} s"
                ) from error
            raise translate(error, host, stage) from error
    return link


def _transport(key_types: list[str], sock: socket.socket, **options: Any) -> paramiko.Transport:
    """A transport that prefers these kinds of host key, best first."""
    transport = paramiko.Transport(sock, **options)
    security = transport.get_security_options()
    able = list(security.key_types)
    first = [kind for kind in key_types if kind in able]
    security.key_types = [*first, *(kind for kind in able if kind not in first)]
    return transport


def _policy(host: SshHost) -> paramiko.MissingHostKeyPolicy:
    files = known_hosts_files(host)

    class Strict(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
            verdict, lines = known_hosts.judge(
                known_hosts.read(files), host.address, host.port, key.asbytes()
            )
            if verdict != "known":
                raise host_key_error(host, verdict, key.get_name(), key.asbytes(), lines)

    return Strict()


def _quote_path(path: str) -> str:
    home = re.match(r"~[A-Za-z0-9._-]*/", path)
    return home.group() + shlex.quote(path[home.end() :]) if home else shlex.quote(path)


def _shutdown(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
