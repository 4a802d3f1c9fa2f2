"""What the host remembers: the journal on the disk, the lock's record, and how far releases lead back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.state import durable, layout, line, lock, releases
from ddtree_deploy.onhost.state.journal import Journal, read
from ddtree_deploy.onhost.state.lock import FileLock, SiteLock
from ddtree_deploy.onhost.wire.protocol import Target, to_dict

from .test_parts import ENDED, add_run, plan


def test_an_event_that_must_last_is_on_the_disk_when_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    lasting: list[list[str]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: lasting.append([e["e"] for e in read(journal.path)[0]]))
    journal.write("progress")
    assert lasting == []
    journal.write("intent", sync=True)
    assert lasting == [["progress", "intent"]]


def test_a_new_journal_s_name_is_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda fd: folders.append(Path(f"/proc/self/fd/{fd}").readlink()))
    journal = Journal(tmp_path / "journal.jsonl")
    assert folders == [tmp_path]
    journal.write("run")
    again = Journal(journal.path)
    again.write("end")
    assert [e["n"] for e in read(again.path)[0]] == [1, 2]
    assert folders == [tmp_path], "the name of an old one is"


# ---- the lock --------------------------------------------------------------------------------------------


def test_a_recovery_goes_on_as_the_owner_that_its_parent_is(tmp_path: Path) -> None:
    parent = SiteLock(tmp_path)
    parent.acquire("r1", "ada", "rollout")
    child = SiteLock.inherited(tmp_path, parent.fd)
    assert child.owner == {**parent.owner} and child.owner["who"] == "ada"
    child.at_step("undo of install")
    assert lock.read_owner(tmp_path) == {**parent.owner, "step": "undo of install"}
    parent.release()


def test_the_owner_s_record_has_one_size_and_a_checksum(tmp_path: Path) -> None:
    held = SiteLock(tmp_path)
    held.acquire("r1", "ada", "rollout")
    path = tmp_path / lock.LOCK
    assert path.stat().st_size == lock.RECORD == 4096
    held.at_step("a step with a longer name")
    assert path.stat().st_size == lock.RECORD, "a full disk cannot keep it from saying more"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert lock.read_owner(tmp_path) == {}, "half written"
    held.release()
    assert path.stat().st_size == lock.RECORD and lock.read_owner(tmp_path) == {}


# ---- releases --------------------------------------------------------------------------------------------


def test_a_base_that_could_not_be_kept_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        releases.keep_base(tmp_path, b"upstream")
    assert list((tmp_path / releases.BASES).iterdir()) == []
    monkeypatch.undo()
    digest = releases.keep_base(tmp_path, b"upstream")
    assert releases.base(tmp_path, digest) == b"upstream"


def test_a_run_without_the_lock_is_unfinished_when_its_runner_is_dead(tmp_path: Path) -> None:
    """It may have died while it waited for the lock, or be waiting still."""
    begun = {"e": "run", "pid": 1}
    dead = add_run(tmp_path, "dead", begun)
    assert releases.unfinished(dead)
    ended = add_run(tmp_path, "ended", begun, {"e": "end", "exit": 5})
    assert not releases.unfinished(ended)
    waiting = add_run(tmp_path, "waiting", begun)
    alive = FileLock(waiting / layout.ALIVE)
    assert alive.acquire()
    assert not releases.unfinished(waiting)
    alive.release()
    assert releases.unfinished(waiting)


def test_a_run_with_the_lock_is_unfinished_until_its_end_is_no_failed_undo(tmp_path: Path) -> None:
    locked = {"e": "locked"}
    assert releases.unfinished(add_run(tmp_path, "a", locked))
    assert not releases.unfinished(add_run(tmp_path, "b", locked, {"e": "end", "exit": 1}))
    assert releases.unfinished(add_run(tmp_path, "c", locked, {"e": "end", "exit": 3}))
    recovered = add_run(tmp_path, "d", locked, {"e": "end", "exit": 3}, {"e": "end", "exit": 0})
    assert not releases.unfinished(recovered)


def release(site_dir: Path, run: str, before: str, *, backup: bool = True, planned: bool = True) -> None:
    """A run that made `run` live on `before`, as it lies in the state folder."""
    run_dir = add_run(site_dir, run, *ENDED)
    if backup:
        (run_dir / "backup" / layout.MANIFEST).write_text("[]")
    if planned:
        target = Target(f"/s/{run}.py", f"site:{run}.py", "blob:x", "s", "")
        durable.write_json(run_dir / layout.PLAN, to_dict(plan(run=run, targets=[target])))
    durable.write_json(run_dir / layout.PREVIOUS, {"release": before} if before else None)
    durable.write_json(site_dir / releases.INSTALLED, {"release": run})


def test_the_line_of_the_live_release_leads_back_over_all_rollouts(tmp_path: Path) -> None:
    release(tmp_path, "r1", "")
    release(tmp_path, "r2", "r1")
    assert line.leading_back(tmp_path)[0] == [
        ("r2", "r1", {"/s/r2.py": "site:r2.py"}, {"/s/r2.py"}, True),
        ("r1", "", {"/s/r1.py": "site:r1.py"}, {"/s/r1.py"}, True),
    ]


@pytest.mark.parametrize("gone", [{"backup": False}, {"planned": False}])
def test_the_line_ends_where_a_backup_is_gone(tmp_path: Path, gone: dict[str, Any]) -> None:
    release(tmp_path, "r1", "", **gone)
    release(tmp_path, "r2", "r1")
    assert [[link.run for link in links] for links in line.leading_back(tmp_path)] == [["r2"], []]


def test_what_the_live_release_replaced_is_kept_however_many_came_after(tmp_path: Path) -> None:
    """r01 and r02 are live and its base; the others were rolled back, and are newer."""
    release(tmp_path, "r01", "")
    release(tmp_path, "r02", "r01")
    for number in range(3, 14):
        add_run(tmp_path, f"r{number:02d}", *ENDED)
    (tmp_path / releases.RELEASES).write_text(
        "".join(json.dumps({"run": r, "previous": p, "verdict": "good"}) + "\n" for r, p in [("r01", "")])
    )
    line.prune(tmp_path, keep={"r13"})
    kept = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert kept == ["r01", "r02", "r09", "r10", "r11", "r12", "r13"]
