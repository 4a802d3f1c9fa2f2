"""`unlock`: the run that holds a venv is ended, in order or hard, and the host is as before. And races."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.facts import gather
from ddtree_deploy.onhost.state import layout
from ddtree_deploy.onhost.state.held import LOCK, is_held
from ddtree_deploy.onhost.state.lock import RECORD, SiteLock, read_owner, write_owner

from .host import DEADLINE_S, Host, until
from .test_runner import assert_as_before, command, go, up, waiting

RACES = int(os.environ.get("DDTREE_RACES", "2"))


def unlock(host: Host, run: str, patience: int) -> tuple[int, dict[str, Any]]:
    argv = [
        host.python,
        "-I",
        "-S",
        str(host.run_dir(run) / layout.RUNNER),
        "unlock",
        str(host.site_dir),
        str(patience),
    ]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=2 * DEADLINE_S)
    assert not done.stderr, done.stderr.decode()
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_a_runner_that_listens_undoes_in_order(host: Host) -> None:
    before = host.digest()
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    code, said = unlock(host, session.run, 60)
    assert (code, said["how"], said["exit"], said["state"]) == (0, "interrupted", 130, "as before")
    assert session.wait() == 130
    assert not is_held(host.site_dir / "lock")
    assert_as_before(host, before, session.run)


def test_one_that_hangs_is_killed_and_recovered(host: Host) -> None:
    before = host.digest()
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    os.kill(host.runner_pid(session.run), signal.SIGSTOP)
    code, said = unlock(host, session.run, 1)
    assert (code, said["how"], said["state"]) == (0, "killed and recovered", "as before")
    assert not is_held(host.site_dir / "lock")
    assert_as_before(host, before, session.run)


def test_an_undo_that_fails_is_said(host: Host) -> None:
    stubborn = command("/bin/true", name="own", undo=["/bin/false"])
    session = host.launch(*host.plan(steps=host.steps(stubborn, waiting(host))))
    up(session)
    code, said = unlock(host, session.run, 60)
    assert (code, said["exit"], said["state"]) == (3, 3, "needs a person")


def test_facts_wait_for_an_owner_that_has_not_said_who_it_is(host: Host) -> None:
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    owner = read_owner(host.site_dir)
    assert gather.lock_facts(host.site_dir).run == session.run == owner["run"]
    go(host)
    assert session.wait() == 0


def test_what_a_free_lock_says_is_of_the_past(tmp_path: Path) -> None:
    """A holder who was killed said something; the next one is not taken for them, and says as much."""
    dead = SiteLock(tmp_path)
    dead.acquire("run1", "ada@desk", "rollout")
    dead.at_step("install")
    size = (tmp_path / LOCK).stat().st_size
    os.close(dead.fd)
    assert read_owner(tmp_path)["step"] == "install" and not is_held(tmp_path / LOCK)
    assert gather.lock_facts(tmp_path) == gather.LockFacts()
    lock = SiteLock(tmp_path)
    lock.acquire("run2", "eve@desk", "rollback")
    lock.at_step("a step with a much longer name than any")
    assert gather.lock_facts(tmp_path).run == "run2"
    assert (tmp_path / LOCK).stat().st_size == size == RECORD, "a full disk keeps nobody from saying it"
    lock.release()
    assert read_owner(tmp_path) == {}


def test_a_record_that_is_read_while_it_is_written_is_not_believed(tmp_path: Path) -> None:
    fd = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    write_owner(fd, {"run": "run1", "starts": True})
    whole = (tmp_path / LOCK).read_bytes()
    for torn in (b"", whole[:20], whole.replace(b"run1", b"run2"), b"x" + whole[1:]):
        (tmp_path / LOCK).write_bytes(torn)
        assert read_owner(tmp_path) == {}
    (tmp_path / LOCK).write_bytes(whole)
    assert read_owner(tmp_path) == {"run": "run1", "starts": True}
    os.close(fd)


@pytest.mark.parametrize("race", range(RACES))
def test_of_two_at_once_exactly_one_wins_and_the_other_names_it(host: Host, race: int) -> None:
    plans = [host.plan(steps=host.steps(waiting(host)), who=f"{name}@desk") for name in ("ada", "eve")]
    sessions = [host.launch(*plan) for plan in plans]
    until(lambda: any(s.process.poll() is not None for s in sessions))
    lost = next(s for s in sessions if s.process.poll() is not None)
    (won,) = [s for s in sessions if s is not lost]
    assert lost.wait() == 5
    winner = next(plan["who"] for plan, _ in plans if plan["run"] == won.run)
    assert f"locked by {winner}, rollout {won.run}" in lost.end["reason"], lost.end
    assert lost.end["state"] == "nothing was changed"
    go(host)
    assert won.wait() == 0, won.end
