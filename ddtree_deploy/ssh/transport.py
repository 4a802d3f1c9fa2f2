"""paramiko's transport, made to wait for fewer answers, and for none without a bound."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ddtree_deploy.ssh.library import AuthOnlyHandler, ServiceRequestingTransport, paramiko
from ddtree_deploy.ssh.tcp import IDENTIFICATION, bounded

SIGN_S = 60.0  # an agent may ask for a touch, or for a word


class AgentSilent(Exception):
    """The SSH agent was asked to sign, and does not."""


class Transport(ServiceRequestingTransport):
    """Says what `tcp.connect` has said ahead, and asks to log in once, not for each key.

    key_types: the kinds of host key to prefer, best first.
    """

    def __init__(self, sock: Any, *, key_types: Sequence[str] = (), **options: Any) -> None:
        super().__init__(sock, **options)
        self.local_version = IDENTIFICATION
        security = self.get_security_options()
        able = list(security.key_types)
        first = [kind for kind in key_types if kind in able]
        security.key_types = [*first, *(kind for kind in able if kind not in first)]
        self._asked = False
        self._answered = threading.Event()

    def ensure_session(self) -> None:
        """Ask to log in; that does not say who we are. The answer is not waited for: a server takes in order
        what follows, and one that says no ends the connection.
        """
        if not self.is_active():
            raise paramiko.SSHException("the connection has ended")
        if self._asked:
            return
        handler: Any = self.get_auth_handler()
        self.auth_handler = handler
        handler._request_auth()
        self._asked = True

    def get_auth_handler(self) -> AuthOnlyHandler:
        return _Handler(self, self._answered)

    def _parse_service_accept(self, m: paramiko.Message) -> None:
        self._answered.set()


class _Handler(AuthOnlyHandler):
    """Offers keys. `answered`: the server has said that it lets us try."""

    def __init__(self, transport: Transport, answered: threading.Event) -> None:
        super().__init__(transport)
        self._answered = answered

    def auth_publickey(self, username: str, key: Any) -> list[str]:  # type: ignore[override]
        """As the library's. Raises AgentSilent, too."""
        # An RSA key signs in one of several ways; which ones the server takes it says before it answers.
        while "rsa" in key.get_name() and self.transport.is_active() and not self._answered.wait(0.1):
            pass
        if isinstance(key, paramiko.AgentKey):
            key = _Agents(key)
        return super().auth_publickey(username, key)

    def wait_for_response(self, event: threading.Event) -> Any:
        # The library sends a request and only then makes the event that the answer is to set.
        if self.authenticated or self.username is None:  # answered already: yes, or no
            event.set()
        return super().wait_for_response(event)


class _Agents:
    """A key that an agent keeps. The library waits for what it signs as long as the agent likes."""

    def __init__(self, key: paramiko.AgentKey) -> None:
        self._key = key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)

    def sign_ssh_data(self, *args: Any) -> Any:
        late = f"the SSH agent did not sign within {SIGN_S:.0f} s"
        try:
            return bounded(lambda: self._key.sign_ssh_data(*args), SIGN_S, late)
        except TimeoutError as error:
            raise AgentSilent(error) from None
