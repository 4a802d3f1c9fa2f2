"""Fixtures for modules that need one SSH server: the better flavour. What differs is in the other modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy.sandbox.sshd import SshServer
from tests.ports import free_port
from tests.ssh.box import Box


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    folder = tmp_path_factory.mktemp("auto")
    with SshServer(folder / "ssh", free_port(), folder / "home") as running:
        yield running


@pytest.fixture
def serving(server: SshServer, tmp_path: Path) -> Iterator[Box]:
    """A host whose service runs the chain, started by hand."""
    made = Box(tmp_path, server, port=free_port())
    made.serve()
    yield made
    made.close()
