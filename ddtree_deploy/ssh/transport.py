"""paramiko's transport, made to wait for fewer answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ddtree_deploy.ssh.library import AuthOnlyHandler, ServiceRequestingTransport, paramiko
from ddtree_deploy.tcp import IDENTIFICATION


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

    def ensure_session(self) -> None:
        """Ask to log in; that does not say who we are. The answer is not waited for: a server takes in order
        what follows, and one that says no ends the connection.
        """
        if self._asked:
            return
        if not self.is_active():
            raise paramiko.SSHException("the connection has ended")
        handler: Any = self.get_auth_handler()
        self.auth_handler = handler
        handler._request_auth()
        self._asked = True

    def get_auth_handler(self) -> AuthOnlyHandler:
        return _Handler(self)


class _Handler(AuthOnlyHandler):
    """The library sends a request and only then makes the event that the answer is to set."""

    def wait_for_response(self, event: threading.Event) -> Any:
        if self.authenticated or self.username is None:  # answered already: yes, or no
            event.set()
        return super().wait_for_response(event)
