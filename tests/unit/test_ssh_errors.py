"""Every error of the SSH library and of sockets becomes one of ours, in words."""

from __future__ import annotations

import importlib
import inspect
import io
import pkgutil
import socket
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paramiko.auth_strategy import AuthResult

from ddtree_deploy.errors import InputError, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.running.remote import explain_exec
from ddtree_deploy.ssh import errors

ED25519 = (
    Ed25519PrivateKey.generate()
    .private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    .decode()
)
HOST = Host(
    "ct1", "10.0.0.1", "/v/bin/python", user="root", connect_timeout_s=10, file=Path("hosts.yaml"), line=4
)


def library_errors() -> list[type[BaseException]]:
    """Every exception class that paramiko defines, and those of sockets."""
    found: set[type[BaseException]] = {OSError, EOFError, TimeoutError, socket.gaierror}
    found |= {ConnectionRefusedError, ConnectionResetError, BrokenPipeError}
    for info in pkgutil.iter_modules(paramiko.__path__):
        if info.name in ("_winapi", "win_openssh", "win_pageant"):
            continue
        module = importlib.import_module(f"paramiko.{info.name}")
        for _, value in inspect.getmembers(module, inspect.isclass):
            if issubclass(value, Exception) and value.__module__.startswith("paramiko"):
                found.add(value)
    return sorted(found, key=lambda kind: kind.__name__)


def made(kind: type[BaseException]) -> BaseException:
    """An instance as the library would raise it."""
    key = paramiko.Ed25519Key.from_private_key(io.StringIO(ED25519))
    special: dict[str, tuple[Any, ...]] = {
        "AuthFailure": (AuthResult(strategy=None),),
        "BadHostKeyException": ("h", key, key),
        "BadAuthenticationType": ("no", ["password"]),
        "PartialAuthentication": (["password"],),
        "ChannelException": (1, "Administratively prohibited"),
        "NoValidConnectionsError": ({("10.0.0.1", 22): OSError("no")},),
        "ProxyCommandFailure": ("nc h 22", "broken"),
        "UnknownKeyType": ("odd", b"key"),
        "InvalidHostKey": ("host odd", OSError("no")),
    }
    return kind(*special.get(kind.__name__, ("something odd",)))


@pytest.mark.parametrize("kind", library_errors(), ids=lambda kind: kind.__name__)
def test_every_library_error_is_mapped(kind: type[BaseException]) -> None:
    mapped = errors.translate(made(kind), HOST, "connect")
    line = mapped.render()
    assert isinstance(mapped, TransportError) and mapped.exit_code == 4
    assert line.startswith("ct1: connect: ") and "nothing was touched" in line
    assert "next: ssh -p 22 root@10.0.0.1 true" in line and "\n" not in line


def test_the_table_names_subclasses_before_their_bases() -> None:
    kinds = [kind for kind, _ in errors._MESSAGES]
    for i, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:i]), kind


def test_every_class_of_the_library_has_words_of_its_own() -> None:
    for name, kind in inspect.getmembers(paramiko.ssh_exception, inspect.isclass):
        if issubclass(kind, paramiko.SSHException):
            assert any(kind is entry for entry, _ in errors._MESSAGES), name


def test_an_error_of_ours_passes_through() -> None:
    mine = errors.transport_error(HOST, "x", "y")
    assert errors.translate(mine, HOST, "z") is mine


@pytest.mark.parametrize(
    ("rc", "err", "kind", "says"),
    [
        (127, b"bash: line 1: /v/bin/python: No such file or directory\n", InputError, "no such interpreter"),
        (126, b"Permission denied\n", InputError, "no such interpreter"),
        (None, b"", TransportError, "connection ended"),
        (1, b"facts: the venv is broken\n", Exception, "the venv is broken"),
        (1, b"Traceback ...\nValueError: \x1b[2Jodd\n", Exception, "ValueError: \\x1b[2Jodd"),
    ],
)
def test_a_failed_exec_is_explained(rc: int | None, err: bytes, kind: type[Exception], says: str) -> None:
    error = explain_exec(HOST, "facts", rc, b"", err)
    assert isinstance(error, kind) and says in error.render() and "nothing was touched" in error.render()


@pytest.mark.parametrize(
    "err", [b"sudo: a password is required\n", b"bash: line 1: sudo: command not found\n"]
)
def test_become_without_a_usable_sudo_is_said(err: bytes) -> None:
    host = Host("ct1", "10.0.0.1", "/v/bin/python", become=True)
    error = explain_exec(host, "facts", 1, b"", err)
    assert isinstance(error, TransportError) and "become: true" in error.message
