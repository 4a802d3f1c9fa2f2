"""The whole road, over OpenSSH and over asyncssh."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ddtree_deploy.sandbox import processes
from ddtree_deploy.sandbox.sshd import SshServer
from tests.ssh.box import OVERLAID, Box, differs, sessions, wait_for, with_run_step

pytestmark = pytest.mark.ssh


@pytest.fixture
def box(server: SshServer, tmp_path: Path) -> Box:
    return Box(tmp_path, server)


def test_a_rollout_and_its_rollback_leave_the_venv_as_it_was(box: Box) -> None:
    before = box.snapshot()
    done = box.run("rollout", "box", "--yes")
    assert done.code == 0, done
    assert (box.site / OVERLAID).read_text().startswith("BLOCK = 32")
    verdicts = done.verdicts()
    assert list(verdicts)[:6] == ["local", "lock", "preflight", "backup", "stage", "compile"]
    assert verdicts["install"] == "pass" and verdicts["start"] == "skipped"
    back = box.run("rollback", "--yes")  # no target: the hosts of the last rollout
    assert back.code == 0, back
    assert differs(box, before) == []
    again = box.run("rollback", "--yes")
    assert again.code == 2 and "nothing of ours is installed" in again.outcome["reason"]


def test_a_run_survives_the_loss_of_its_connection(box: Box, server: SshServer) -> None:
    flag = with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    if server.flavour == "openssh":
        processes.end(sessions(server), grace=0)
    else:
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGKILL)
        wait_for(lambda: server.process is None, "the end of the server")
        server.start()
    running.until(lambda e: e["e"] == "disconnected", "the loss")
    running.until(lambda e: e["e"] == "reconnected", "the new connection")
    flag.touch()
    done = running.finish()
    assert done.code == 0, done
    numbers = [e["n"] for e in done.events if "n" in e]
    assert numbers == list(range(1, len(numbers) + 1))  # nothing missed, nothing twice
