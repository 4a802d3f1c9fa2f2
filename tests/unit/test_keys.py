"""Which keys are offered again on another connection."""

from __future__ import annotations

from typing import Any

import paramiko
import pytest

from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.ssh.auth import Keys


class Key:
    def __init__(self, name: str) -> None:
        self.name = name

    def asbytes(self) -> bytes:
        return self.name.encode()


class Server:
    """Refuses the first key in order, and hangs up at the second; the library says EOF."""

    def __init__(self) -> None:
        self.offered: list[str] = []

    def is_active(self) -> bool:
        return len(self.offered) < 2

    def auth_publickey(self, user: str, key: Key) -> list[str]:
        self.offered.append(key.name)
        if len(self.offered) == 2:
            raise EOFError
        raise paramiko.SSHException("refused")


def test_a_server_that_hangs_up_after_some_keys_is_called_again_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: set[bytes] = set()
    keys = Keys(Host("a", "10.0.0.1", "/python"), refused)
    monkeypatch.setattr(keys, "_candidates", lambda: iter([Key("one"), Key("two"), Key("three")]))
    server: Any = Server()
    with pytest.raises(EOFError):
        keys.authenticate(server)
    assert keys.more and refused == {b"one"}, "nobody knows what it thought of the second"
