"""Which keys we offer, in which order, without burning the server's patience."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
from paramiko import ssh_exception
from paramiko.pkey import UnknownKeyType

from ddtree_deploy.errors import InputError
from ddtree_deploy.ssh import known_hosts
from ddtree_deploy.ssh.errors import reason_of, transport_error
from ddtree_deploy.ssh.host import SshHost, login_name
from ddtree_deploy.ssh.stream import Watchdog
from ddtree_deploy.ssh.tcp import bounded

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
# sshd ends a connection after six refused keys (MaxAuthTries) or fewer, so a full agent needs several.
KEYS_PER_CONNECTION = 5
CONNECTIONS_FOR_KEYS = 24
AUTH_S = 60.0
SIGN_S = 60.0  # an agent may ask for a touch, or for a word


class AgentSilent(Exception):
    """The SSH agent was asked to sign, and does not."""


class Keys:
    """Public keys only: the host's identity file, else the agent's keys and the usual files.

    Stands in for paramiko's AuthStrategy. `refused` (public blobs) is shared by the connections of one
    `connect`; `more` says that another connection may get further.
    """

    def __init__(self, host: SshHost, refused: set[bytes]) -> None:
        self.host = host
        self.refused = refused
        self.begun = False
        self.more = False
        self.dog: Watchdog | None = None

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer keys until one is taken. Raises AuthenticationException when none was."""
        self.begun = True
        if self.dog:
            self.dog.seconds = AUTH_S + SIGN_S
        tried = 0
        for key in self._candidates():
            if key.asbytes() in self.refused:
                continue
            if tried == KEYS_PER_CONNECTION:
                self.more = True
                break
            if self.dog:
                self.dog.feed()
            if self._offer(transport, key, first=not tried):
                return
            tried += 1
            if self.more:
                break
        if not tried and not self.refused:
            raise transport_error(
                self.host, "authentication", "there is no SSH key to offer: no agent, no identity_file"
            )
        raise ssh_exception.UnableToAuthenticate

    def _offer(self, transport: paramiko.Transport, key: paramiko.PKey, *, first: bool) -> bool:
        """Whether the host takes the key."""
        try:
            signer: Any = _BoundedKey(key) if isinstance(key, paramiko.AgentKey) else key
            further = transport.auth_publickey(login_name(self.host), signer)
        except (ssh_exception.BadAuthenticationType, ssh_exception.PartialAuthentication):
            raise
        except AgentSilent as error:
            raise transport_error(self.host, "authentication", str(error)) from error
        except (EOFError, OSError):
            self.more = not first  # servers end the connection after some keys
            raise
        except paramiko.SSHException:
            # The same, told in another way. Only the first was tried for certain.
            self.more = not transport.is_active()
            if not self.more or first:
                self.refused.add(key.asbytes())
            return False
        if further:
            raise ssh_exception.PartialAuthentication(further)
        return True

    def _candidates(self) -> Iterator[paramiko.PKey]:
        identity = self.host.identity_file
        if identity is None:
            yield from _agent_keys()
            for name in DEFAULT_KEYS:
                path = Path("~/.ssh").expanduser() / name
                key = _load(path) if path.exists() else None
                if key is not None:
                    yield key
            return
        try:
            key = _load(identity)
        except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
            raise InputError(f"identity_file {identity}: {reason_of(error)}", host=self.host.name) from error
        if key is not None:
            yield key
            return
        # Encrypted: the agent may hold it unlocked.
        public = _public_blob(identity)
        held = [k for k in _agent_keys() if public in (None, k.asbytes())]
        if not held:
            raise InputError(
                f"identity_file {identity} is encrypted and the agent does not hold it",
                host=self.host.name,
                next_command=f"ssh-add {shlex.quote(str(identity))}",
            )
        yield from held


class _BoundedKey:
    """A key that an agent keeps. The library waits for what it signs as long as the agent likes."""

    def __init__(self, key: paramiko.AgentKey) -> None:
        self.key = key

    def __getattr__(self, name: str) -> Any:
        return getattr(self.key, name)

    def sign_ssh_data(self, *args: Any) -> Any:
        late = f"the SSH agent did not sign within {SIGN_S:.0f} s"
        try:
            return bounded(lambda: self.key.sign_ssh_data(*args), SIGN_S, late)
        except TimeoutError as error:
            raise AgentSilent(error) from None


def _agent_keys() -> list[paramiko.PKey]:
    try:
        return list(bounded(lambda: paramiko.Agent().get_keys(), 10.0, "the SSH agent does not answer"))
    except (OSError, paramiko.SSHException):
        return []


def _load(path: Path) -> paramiko.PKey | None:
    """The private key of the file; None when it is encrypted."""
    try:
        key: paramiko.PKey = paramiko.PKey.from_path(path)
    except (TypeError, ssh_exception.PasswordRequiredException):
        return None
    except ValueError as error:
        if "encrypted" in str(error).lower() or "password" in str(error).lower():
            return None
        raise
    return key


def _public_blob(identity: Path) -> bytes | None:
    try:
        return known_hosts.blob(identity.with_name(identity.name + ".pub").read_text())
    except (OSError, ValueError):
        return None
