"""Which keys are offered again on another connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paramiko
import pytest

from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.ssh import auth, keys
from ddtree_deploy.ssh.auth import Keys


class Key:
    public_blob = None

    def __init__(self, name: str) -> None:
        self.name = name

    def asbytes(self) -> bytes:
        return self.name.encode()


def offered(*names: str) -> Iterator[keys.Offer]:
    for name in names:
        key: Any = Key(name)
        yield keys.Offer(f"file {name}", key)


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
    refused: dict[bytes, str] = {}
    ours = Keys(Host("a", "10.0.0.1", "/python"), refused)
    monkeypatch.setattr(auth, "offers", lambda *_: offered("one", "two", "three"))
    server: Any = Server()
    with pytest.raises(EOFError):
        ours.authenticate(server)
    assert ours.more and refused == {b"one": "file one"}, "nobody knows what it thought of the second"
