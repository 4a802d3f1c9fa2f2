from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .host import Host, zipapp


@pytest.fixture(scope="session")
def runner() -> bytes:
    return zipapp()


@pytest.fixture
def host(tmp_path: Path, runner: bytes) -> Iterator[Host]:
    made = Host(tmp_path, runner=runner)
    yield made
    made.close()
