"""Connect strictly.

Host keys are checked by `known_hosts`, not by the library: fabric installs a policy that accepts any key, and
paramiko honours neither @revoked nor a second key type.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from functools import partial
from typing import Any

import fabric  # type: ignore[import-untyped]
import paramiko

from ddtree_deploy.errors import HostKeyError, InputError, TransportError
from ddtree_deploy.ssh import known_hosts, link, tcp
from ddtree_deploy.ssh.auth import AUTH_S, CONNECTIONS_FOR_KEYS, SIGN_S, Keys
from ddtree_deploy.ssh.errors import host_key_error, reason_of, translate, transport_error
from ddtree_deploy.ssh.host import SshHost, known_hosts_files, login_name
from ddtree_deploy.ssh.link import EXEC_S, Link, Tell, shutdown
from ddtree_deploy.ssh.stream import Watchdog
from ddtree_deploy.text import safe

# Without a handler Python prints the library's own tracebacks to stderr; its errors reach the user by ours.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


def connect(host: SshHost, tell: Tell | None = None) -> Link:
    """Open a connection to the host, with its key checked and ourselves authenticated.

    tell: gets a line for the user where something takes long or was passed over; by default on stderr.

    Raises:
        HostKeyError: the host's key is unknown, changed or revoked.
        TransportError: anything else that kept us out.
        InputError: the identity file of the host cannot be used.
    """
    tell = tell or partial(_to_stderr, host)
    refused: dict[bytes, str] = {}
    for _ in range(CONNECTIONS_FOR_KEYS):
        strategy = Keys(host, refused)
        try:
            made = _connect_once(host, strategy, _policy(host), tell)
        except TransportError:
            if not strategy.more:
                raise
            continue
        for note in strategy.notes():
            tell(note)
        return made
    raise strategy.no_way_in()


def _to_stderr(host: SshHost, text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"{host.name}: {safe(text)}", file=sys.stderr, flush=True)


def offered_key(host: SshHost) -> tuple[str, bytes]:
    """The key type and blob that the host presents, whatever is on file. Nothing is authenticated or sent."""
    seen: list[paramiko.PKey] = []

    class Look(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
            seen.append(key)
            raise HostKeyError("only looking")

    try:
        _connect_once(host, Keys(host, {}), Look(), partial(_to_stderr, host)).close()
    except HostKeyError:
        return seen[0].get_name(), seen[0].asbytes()
    raise AssertionError("the policy refuses every key")


def _connect_once(host: SshHost, strategy: Keys, policy: paramiko.MissingHostKeyPolicy, tell: Tell) -> Link:
    def notice() -> None:
        waits = "to take one of our keys" if strategy.begun else "to answer"
        bound = AUTH_S + SIGN_S if strategy.begun else host.connect_timeout_s
        tell(f"waiting for {host.address} port {host.port} {waits}, {bound:.0f} s at most")

    with Watchdog(link.NOTICE_S, notice):
        return _dial(host, strategy, policy, tell)


def _dial(host: SshHost, strategy: Keys, policy: paramiko.MissingHostKeyPolicy, tell: Tell) -> Link:
    try:
        sock = tcp.connect(host.address, host.port, host.connect_timeout_s)
    except Exception as error:
        raise translate(error, host, "connect") from error
    wanted = known_hosts.algorithms(_on_file(host), host.address, host.port)

    connection = fabric.Connection(
        host.address,
        user=login_name(host),
        port=host.port,
        config=fabric.Config(overrides={"load_ssh_configs": False}, lazy=True),
        connect_timeout=host.connect_timeout_s + 5,
        connect_kwargs={
            "sock": tcp.Legible(sock),
            "transport_factory": partial(_transport, wanted),
            "auth_strategy": strategy,
            "banner_timeout": host.connect_timeout_s,
            "auth_timeout": AUTH_S + SIGN_S,
            "channel_timeout": EXEC_S,
        },
    )
    connection.client.set_missing_host_key_policy(policy)
    made = Link(host, connection, tell)
    bound = host.connect_timeout_s + 5
    with Watchdog(bound, lambda: shutdown(sock)) as dog:
        strategy.dog = dog
        try:
            connection.open()
        except BaseException as error:
            made.close()
            if isinstance(error, HostKeyError | InputError | KeyboardInterrupt):
                raise
            stage = "authentication" if strategy.begun else "connect"
            if dog.bitten:
                raise transport_error(
                    host, stage, f"the SSH handshake did not end within {dog.seconds:.0f} s"
                ) from error
            raise translate(error, host, stage) from error
    return made


def _transport(key_types: list[str], sock: socket.socket, **options: Any) -> paramiko.Transport:
    """A transport that prefers these kinds of host key, best first."""
    transport = paramiko.Transport(sock, **options)
    security = transport.get_security_options()
    able = list(security.key_types)
    first = [kind for kind in key_types if kind in able]
    security.key_types = [*first, *(kind for kind in able if kind not in first)]
    return transport


def _policy(host: SshHost) -> paramiko.MissingHostKeyPolicy:
    class Strict(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
            verdict, lines = known_hosts.judge(_on_file(host), host.address, host.port, key.asbytes())
            if verdict != "known":
                raise host_key_error(host, verdict, key.get_name(), key.asbytes(), lines)

    return Strict()


def _on_file(host: SshHost) -> list[known_hosts.Entry]:
    try:
        return known_hosts.read(known_hosts_files(host))
    except OSError as error:
        raise InputError(f"known_hosts {error.filename}: {reason_of(error)}", host=host.name) from error
