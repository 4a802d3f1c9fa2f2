"""For all tests: hypothesis measures no time, as the machine may be busy; a unit test starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

with suppress(ImportError):  # SGLang venvs, where a part of the payload tests runs, have none
    from hypothesis import HealthCheck, settings

    settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("project")

QUICK = {"unit", "report"}  # folders; a module elsewhere says `pytestmark = pytest.mark.unit`
STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
_started: list[str] = []


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make unit` runs."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in QUICK and not {"starts", "browser"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker("unit")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS or (event == "socket.bind" and isinstance(arguments[1], tuple)):
        _started.append(event)


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def starts_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """A unit test starts no process and no server; one that must is marked `starts`."""
    _started.clear()
    yield
    if request.node.get_closest_marker("unit"):
        assert _started == [], "mark it with pytest.mark.starts"
