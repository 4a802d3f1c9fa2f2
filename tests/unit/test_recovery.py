"""What is said when the work on a host has begun and our sight of it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_deploy.errors import ContactLost
from ddtree_deploy.running import unlocking
from ddtree_deploy.running.recovery import recover_orphan
from ddtree_deploy.running.sight import Sight
from ddtree_deploy.ssh import StreamEnded


class _Link:
    """Starts anything; its stream is interrupted at the first wait."""

    def command(self, *words: str) -> str:
        return " ".join(words)

    def stream(self, command: str, *, stage: str) -> Any:
        def line(timeout: float) -> bytes:
            raise KeyboardInterrupt

        return SimpleNamespace(line=line)


@pytest.mark.parametrize("command", ["recover", "unlock"])
def test_an_interrupt_once_the_host_has_begun_says_that_it_goes_on(command: str) -> None:
    host: Any = SimpleNamespace(name="ct129")
    lock = SimpleNamespace(run="r1")
    facts: Any = SimpleNamespace(python="python3", site_dir="/site", lock=lock)
    link: Any = _Link()
    with pytest.raises(ContactLost) as caught:
        if command == "recover":
            recover_orphan(host, link, facts, "r1", lambda event: None, Sight())
        else:
            unlocking.force(host, link, facts, 5, lambda event: None, Sight())
    assert caught.value.exit_code == 8
    assert caught.value.render() == (
        f"ct129: {command}: interrupted: contact lost; the host goes on by itself; "
        "next: ddtree-deploy status ct129"
    )


@pytest.mark.parametrize(("rc", "code"), [(0, 0), (3, 3), (5, 5), (8, 8), (1, 3)])
def test_an_unlock_ends_as_the_host_says(rc: int, code: int) -> None:
    """8: the host goes down, and puts the run right when it boots; that is no broken host."""
    host: Any = SimpleNamespace(name="ct129")
    facts: Any = SimpleNamespace(python="python3", site_dir="/site", lock=SimpleNamespace(run="r1"))

    def line(timeout: float) -> bytes:
        raise StreamEnded

    stream = SimpleNamespace(line=line, exit_status=lambda: rc, stderr=b"")
    link: Any = SimpleNamespace(command=lambda *words: "", stream=lambda command, stage: stream)
    seen = Sight()
    outcome = unlocking.force(host, link, facts, 5, lambda event: None, seen)
    assert outcome.exit_code == code and not seen.open
    assert ("boots" in outcome.state) == (code == 8)
