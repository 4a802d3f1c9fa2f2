"""Which keys we offer, in which order, without burning the server's patience."""

from __future__ import annotations

from typing import Any

import paramiko
from paramiko import ssh_exception

from ddtree_deploy.errors import TransportError
from ddtree_deploy.ssh.errors import transport_error
from ddtree_deploy.ssh.host import SshHost, login_name
from ddtree_deploy.ssh.keys import AGENT, Offer, offers
from ddtree_deploy.ssh.stream import Watchdog
from ddtree_deploy.ssh.tcp import bounded

# sshd ends a connection after six refused keys (MaxAuthTries) or fewer, so a full agent needs several.
KEYS_PER_CONNECTION = 5
CONNECTIONS_FOR_KEYS = 24
AUTH_S = 60.0
SIGN_S = 60.0  # an agent may ask for a touch, or for a word


class AgentSilent(Exception):
    """The SSH agent was asked to sign, and does not."""


class Keys:
    """Public keys only, as `keys.offers` has them.

    Stands in for paramiko's AuthStrategy. `refused` (blob -> where it is from) is shared by the connections
    of one `connect`; `more` says that another connection may get further. `passed_over`: what could not be
    offered, and why.
    """

    def __init__(self, host: SshHost, refused: dict[bytes, str]) -> None:
        self.host = host
        self.refused = refused
        self.passed_over: dict[str, str] = {}
        self.begun = False
        self.more = False
        self.dog: Watchdog | None = None

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer keys until one is taken. Raises TransportError when none was."""
        self.begun = True
        if self.dog:
            self.dog.seconds = AUTH_S + SIGN_S
        tried = 0
        for offer in offers(self.host, self.passed_over.__setitem__):
            if offer.blob in self.refused:
                continue
            if tried == KEYS_PER_CONNECTION:
                self.more = True
                break
            if self.dog:
                self.dog.feed()
            if self._offer(transport, offer, first=not tried):
                return
            tried += 1
            if self.more:
                break
        raise self.no_way_in()

    def no_way_in(self) -> TransportError:
        """That no key was taken: each that was offered, and each that could not be, with the reason."""
        files = dict.fromkeys(where for where in self.refused.values() if where != AGENT)
        of_agent = list(self.refused.values()).count(AGENT)
        offered = [*files, *([f"{of_agent} of {AGENT}"] if of_agent else [])]
        said = "there is no SSH key to offer: no agent, no identity_file"
        if offered:
            user = login_name(self.host)
            said = f"the host refused every key offered for user {user} ({', '.join(offered)})"
        return transport_error(self.host, "authentication", "; ".join([said, *self.notes()]))

    def notes(self) -> list[str]:
        """What was passed over, in words."""
        return [f"passed over {where}: {why}" for where, why in self.passed_over.items()]

    def _offer(self, transport: paramiko.Transport, offer: Offer, *, first: bool) -> bool:
        """Whether the host takes it."""
        key = offer.key
        key.public_blob = offer.certificate  # what the library sends in place of the key
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
                self.refused[offer.blob] = offer.where
            return False
        if further:
            raise ssh_exception.PartialAuthentication(further)
        return True


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
