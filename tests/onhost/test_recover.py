"""Recoveries that are killed themselves, and what dead writers leave in a venv's state."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.recovery import orphans
from ddtree_deploy.onhost.state import durable, layout
from ddtree_deploy.onhost.state.journal import Journal, read
from ddtree_deploy.onhost.state.lock import FileLock, Held, SiteLock

# Stands for the run's own runner: a recovery that is killed as often as the file beside it says.
RUNNER = """
import json, os, signal, sys
run_dir, left = sys.argv[2], os.path.join(sys.argv[2], "kills")
count = int(open(left).read())
open(left, "w").write(str(count - 1))
with open(os.path.join(run_dir, "journal.jsonl"), "a") as journal:
    journal.write(json.dumps({"n": 2, "t": 0, "e": "recover"}) + "\\n")
    if count > 0:
        journal.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    end = {"n": 3, "t": 0, "e": "end", "exit": 1, "state": "as before", "reason": "died"}
    journal.write(json.dumps(end) + "\\n")
"""


def dead_run(site_dir: Path, kills: int) -> Path:
    run_dir = site_dir / "runs" / "20260101T000000-abcdef"
    (run_dir / "logs").mkdir(parents=True)
    journal = Journal(run_dir / layout.JOURNAL)
    journal.write("run")
    journal.close()
    (run_dir / layout.RUNNER).write_text(RUNNER)
    (run_dir / "kills").write_text(str(kills))
    return run_dir


@pytest.mark.parametrize(("kills", "code"), [(0, 1), (1, 1), (2, 1), (3, 3)])
def test_a_recovery_that_is_killed_begins_anew_some_times(tmp_path: Path, kills: int, code: int) -> None:
    run_dir = dead_run(tmp_path, kills)
    lock = SiteLock(tmp_path)
    lock.acquire("run", "me", "recover")
    seen: list[dict[str, Any]] = []
    found, reason = orphans.by_its_own_runner(run_dir, lock.fd, seen.append)
    lock.release()
    assert found == code, reason
    assert [e["e"] for e in seen] == [e["e"] for e in read(run_dir / layout.JOURNAL)[0][1:]]
    assert [e["e"] for e in seen].count("recover") == min(kills + 1, orphans.ATTEMPTS)
    assert ("its runner ended with -9" in reason) == (code == 3)


def test_a_run_that_died_on_its_way_to_the_lock_is_an_orphan_and_one_that_waits_for_it_is_none(
    tmp_path: Path,
) -> None:
    run_dir = dead_run(tmp_path, 0)
    waiting = FileLock(run_dir / layout.ALIVE)
    assert waiting.acquire()
    assert orphans.orphans(tmp_path) == []
    waiting.release()
    assert orphans.orphans(tmp_path) == [run_dir.name]
    (run_dir / layout.JOURNAL).unlink()  # not begun: a controller may be sending it
    assert orphans.orphans(tmp_path) == []
    (run_dir / layout.PAYLOAD).write_bytes(b"half of it")
    launch = os.open(run_dir, os.O_RDONLY)
    fcntl.flock(launch, fcntl.LOCK_EX)
    assert orphans.orphans(tmp_path) == []
    os.close(launch)
    assert orphans.orphans(tmp_path) == [run_dir.name], "the host went down in between"


def test_who_takes_the_lock_removes_what_dead_writers_left_half_written(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "20260101T000000-abcdef"
    bases = tmp_path / "bases"
    for folder in (run_dir, bases):
        folder.mkdir(parents=True)
    files = (tmp_path / "installed.json", run_dir / layout.PLAN, bases / "0123abcd")
    left = [durable.temp_of(path) for path in files]
    for path in (*files, *left):
        path.write_text(json.dumps({}))
    lock = SiteLock(tmp_path)
    lock.acquire("run", "me", "rollout")
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in files)
    left[0].write_text("{}")
    with pytest.raises(Held):
        SiteLock(tmp_path).acquire("other", "me", "rollout")
    assert left[0].exists(), "it may be the holder's own"
    lock.release()
