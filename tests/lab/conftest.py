"""Fixtures of the lab. Where none can be made its tests are skipped, and the summary says why.

DDTREE_REQUIRE_LAB=1 turns the skip into a failure: a machine that is meant to run them must not pass without.
DDTREE_LAB_DIR is the folder for the hosts' disks (default: pytest's, or memory where that is an overlayfs).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import need
from tests.lab.hosts import Host, Lab
from tests.lab.image import Image

REQUIRED = os.environ.get("DDTREE_REQUIRE_LAB", "") not in ("", "0")
_skipped = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the lab's tests where it cannot be made, unless it must be."""
    reasons = need.missing()
    if not reasons or REQUIRED:
        return
    mine = [item for item in items if item.get_closest_marker("lab")]
    for item in mine:
        item.add_marker(pytest.mark.skip(reason=f"NO LAB HERE: {'; '.join(reasons)}"))
    config.stash[_skipped] = len(mine)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say loudly that a part of the proof was not run."""
    if count := config.stash.get(_skipped, 0):
        terminalreporter.section("lab tests NOT RUN", sep="!", red=True)
        terminalreporter.line(
            f"{count} tests need a lab, and this machine cannot make one: {'; '.join(need.missing())}"
        )
        terminalreporter.line("DDTREE_REQUIRE_LAB=1 makes this a failure.")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lab for the session; its hosts come and go."""
    if reasons := need.missing():
        pytest.fail(
            f"DDTREE_REQUIRE_LAB is set, but no lab can be made here: {'; '.join(reasons)}", pytrace=False
        )
    folder = Path(os.environ.get("DDTREE_LAB_DIR") or tmp_path_factory.mktemp("lab"))
    if need.filesystem(folder) == "overlay":  # its renames and links are not those of a disk
        folder = Path("/dev/shm")
    folder.mkdir(parents=True, exist_ok=True)
    with Lab(folder) as made:
        yield made


@pytest.fixture
def add_hosts(lab: Lab) -> Iterator[Callable[..., list[Host]]]:
    """`add_hosts(count, Image(...), disk_mb=48)`: fresh hosts, booted, gone after the test."""
    mine: list[Host] = []

    def add(count: int = 1, image: Image | None = None, *, disk_mb: int = 0, boot: bool = True) -> list[Host]:
        new = lab.add(count, image, disk_mb=disk_mb, boot=boot)
        mine.extend(new)
        return new

    yield add
    for host in mine:
        lab.remove(host)


@pytest.fixture
def host(add_hosts: Callable[..., list[Host]]) -> Host:
    """A fresh host: systemd, sshd, sglang.service running."""
    return add_hosts()[0]
