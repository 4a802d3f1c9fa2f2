"""The keys that we may offer: the agent's, and those of key files, with the certificates beside them.

What cannot be used is passed over and named: a broken file must not hide a good one.
"""

from __future__ import annotations

import io
import os
import shlex
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from paramiko.pkey import PublicBlob

from ddtree_deploy.errors import InputError
from ddtree_deploy.ssh import known_hosts
from ddtree_deploy.ssh.errors import reason_of
from ddtree_deploy.ssh.host import SshHost
from ddtree_deploy.ssh.tcp import bounded

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
AGENT = "the agent"
AGENT_S = 10.0
BESIDE = "-cert.pub"  # the file of a key's certificate
CERTIFICATE = "-cert-v01@openssh.com"  # the type of one
_KINDS: tuple[tuple[type, Any], ...] = (
    (RSAPrivateKey, paramiko.RSAKey),
    (EllipticCurvePrivateKey, paramiko.ECDSAKey),
    (Ed25519PrivateKey, paramiko.Ed25519Key),
)

PassOver = Callable[[str, str], None]  # what is passed over, and why


class Unusable(Exception):
    """A key file that cannot be used; the message says why."""


class Encrypted(Unusable):
    """A private key that wants a passphrase."""


@dataclass(frozen=True)
class Offer:
    """One thing that a server is asked to take. `where` names it for people: its file, or the agent."""

    where: str
    key: paramiko.PKey
    certificate: PublicBlob | None = None

    @property
    def blob(self) -> bytes:
        """What the server judges: the certificate, or the public key."""
        return bytes(self.certificate.key_blob) if self.certificate else self.key.asbytes()


def offers(host: SshHost, pass_over: PassOver) -> Iterator[Offer]:
    """The host's identity file, else the agent's keys and the usual files. Raises InputError."""
    if host.identity_file is None:
        yield from _usual(pass_over)
        return
    path = host.identity_file.with_name(host.identity_file.name.removesuffix(BESIDE))
    try:
        yield from _of_file(path, load(path), pass_over)
    except Encrypted:
        held = list(_held_by_agent(path, pass_over))
        if not held:
            raise InputError(
                f"identity_file {path} is encrypted and the agent does not hold it",
                host=host.name,
                next_command=f"ssh-add {shlex.quote(str(path))}",
            ) from None
        yield from held
    except Unusable as error:
        raise InputError(f"identity_file {path}: {error}", host=host.name) from error


def _usual(pass_over: PassOver) -> Iterator[Offer]:
    for key in _agent_keys(pass_over):
        yield from _of_agent(key)
    for name in DEFAULT_KEYS:
        path = Path("~/.ssh").expanduser() / name
        try:
            if not os.path.lexists(path):
                if os.path.lexists(path.with_name(path.name + BESIDE)):
                    yield from _held_by_agent(path, pass_over)
                continue
            _refuse_open(path)
            yield from _of_file(path, load(path), pass_over)
        except Encrypted as error:
            held = list(_held_by_agent(path, pass_over))
            if not held:
                pass_over(str(path), str(error))
            yield from held
        except Unusable as error:
            pass_over(str(path), str(error))


def _refuse_open(path: Path) -> None:
    """OpenSSH takes no private key that others can read."""
    found = _stat(path)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.getuid() and mode & 0o077:
        raise Unusable(f"others can read it (mode {mode:04o}): chmod 600 {shlex.quote(str(path))}")


def _stat(path: Path) -> os.stat_result:
    try:
        found = path.stat()
    except OSError as error:
        raise Unusable(reason_of(error)) from error
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
        raise Unusable("it is not a file")
    return found


def load(path: Path) -> paramiko.PKey:
    """The private key of a file. Raises Unusable, and of that Encrypted."""
    _stat(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unusable(reason_of(error)) from error
    if b"PRIVATE KEY" not in data:
        raise Unusable("there is no private key in it")
    try:
        found = _parsed(data)
        ours = next((ours for theirs, ours in _KINDS if isinstance(found, theirs)), None)
        if ours is None:
            raise Unusable(f"keys of its type are not supported ({type(found).__name__})")
        text = found.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
        key: paramiko.PKey = ours.from_private_key(io.StringIO(text))
        return key
    except TypeError:  # it wants a password, and there is none
        raise Encrypted(
            f"it is encrypted, and the agent does not hold it: ssh-add {shlex.quote(str(path))}"
        ) from None
    except UnsupportedAlgorithm as error:
        raise Unusable(f"keys of its type are not supported ({reason_of(error)[:80]})") from error
    except (ValueError, paramiko.SSHException) as error:  # in words that say nothing
        raise Unusable("it cannot be read as a key: cut off, damaged, or of an unknown form") from error


def _parsed(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that are going out of use
        try:
            return load_ssh_private_key(data, None)
        except ValueError:
            return load_pem_private_key(data, None)


def _of_file(path: Path, key: paramiko.PKey, pass_over: PassOver) -> Iterator[Offer]:
    """The key with the certificate beside its file, if there is one, then the key alone: as OpenSSH does."""
    beside = path.with_name(path.name + BESIDE)
    if os.path.lexists(beside):
        try:
            yield Offer(str(beside), key, _certificate(beside, key))
        except Unusable as error:
            pass_over(str(beside), str(error))
    yield Offer(str(path), key)


def _certificate(path: Path, key: paramiko.PKey) -> PublicBlob:
    _stat(path)
    try:
        found = PublicBlob.from_string(path.read_bytes().decode(errors="replace"))
    except (OSError, ValueError, IndexError, paramiko.SSHException) as error:
        raise Unusable(f"it is not a certificate ({reason_of(error)[:80]})") from error
    if found.key_type != key.get_name() + CERTIFICATE:
        raise Unusable(f"it is not a certificate of a {key.get_name()} key ({found.key_type})")
    return found


def _agent_keys(pass_over: PassOver) -> list[paramiko.AgentKey]:
    try:
        return list(bounded(lambda: paramiko.Agent().get_keys(), AGENT_S, "it does not answer"))
    except (OSError, ValueError, paramiko.SSHException) as error:
        pass_over(AGENT, reason_of(error))
        return []


def _of_agent(key: paramiko.AgentKey) -> Iterator[Offer]:
    certified = key.get_name().endswith(CERTIFICATE)
    yield Offer(AGENT, key, PublicBlob(key.get_name(), key.blob) if certified else None)


def _held_by_agent(path: Path, pass_over: PassOver) -> Iterator[Offer]:
    """What the agent has unlocked of an encrypted file; all that it has where nobody knows which that is."""
    try:
        public = known_hosts.blob(path.with_name(f"{path.name}.pub").read_bytes().decode(errors="replace"))
    except (OSError, ValueError):
        public = None
    for key in _agent_keys(pass_over):
        if key.get_name().endswith(CERTIFICATE):
            if public in (None, key.asbytes()):
                yield from _of_agent(key)
        elif public == key.asbytes():
            yield from _of_file(path, key, pass_over)
        elif public is None:
            yield from _of_agent(key)
