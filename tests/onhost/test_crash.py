"""A crash at every change of the file system, then recovery from the journal alone: before or after.

In one process: a `Disk` that stops at the k-th change stands for SIGKILL; the recovery is the real one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_deploy.onhost.context import Context
from ddtree_deploy.onhost.run import resume, runner
from ddtree_deploy.onhost.state import durable, layout, releases
from ddtree_deploy.onhost.state.journal import read
from ddtree_deploy.onhost.state.lock import FileLock, SiteLock
from ddtree_deploy.onhost.venv import bytecode, tree
from ddtree_deploy.onhost.venv.disk import Disk
from ddtree_deploy.onhost.venv.files import Files
from ddtree_deploy.onhost.wire.protocol import Plan, StepSpec, Target, to_dict

from .host import sha, tar


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that it has written: fsync is proven elsewhere, and slow."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


CHANGES = ("create", "symlink", "link", "rename", "unlink", "mkdir", "rmdir", "sync_folder")


class Crash(BaseException):
    """The process is gone: nothing may catch this."""


class Failing(Disk):
    """Crashes before (or, with `after`, after) the k-th change."""

    def __init__(self, k: int, after: bool) -> None:
        self.left = k
        self.after = after


def _failing(name: str) -> Callable[..., Any]:
    def call(self: Failing, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        result = getattr(Disk, name)(self, *args, **kwargs)
        if self.left == 0:
            raise Crash
        return result

    return call


for _name in CHANGES:
    setattr(Failing, _name, _failing(_name))


class Site:
    """A small site-packages: files to replace and remove, a symlink, a source with a legacy `.pyc`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "site"
        self.package = self.site / "pkg"
        (self.package / "old").mkdir(parents=True)
        (self.package / "a.py").write_text("a = 1\n")
        (self.package / "old" / "b.py").write_text("b = 1\n")
        (self.package / "c.py").symlink_to("a.py")
        (self.package / "d.py").write_text("d = 1\n")
        (self.package / "d.pyc").write_bytes(b"legacy")
        (self.package / "untouched.py").write_text("u = 1\n")
        self.state = root / "state"
        self.site_dir = layout.site_dir(str(self.state), str(self.site))
        self.number = 0

    def snapshot(self) -> dict[str, str]:
        return tree.snapshot(str(self.site))

    def identity(self, path: Path) -> str:
        return Files([str(self.site)], "x").identity(str(path))

    def plan(self, wanted: dict[str, str | None]) -> Plan:
        """`wanted`: path in the package -> content, or None for absent."""
        blobs = {f"blobs/{n}": c for n, c in enumerate(wanted.values()) if c is not None}
        archive = tar({**blobs, "blobs/none": ""})
        self.number += 1
        run = f"run{self.number}"
        targets = [
            Target(
                str(self.package / rel),
                f"sglang:{rel}",
                f"blob:{n}" if content is not None else "absent",
                sha(content) if content is not None else "",
                self.identity(self.package / rel),
            )
            for n, (rel, content) in enumerate(wanted.items())
        ]
        return self.save(run, "rollout", targets, archive, "")

    def back(self, undoes: str) -> Plan:
        live = layout.read_json(self.site_dir / "installed.json")
        targets = [
            Target(p, ref, f"backup:{undoes}", "?", self.identity(Path(p)))
            for p, ref in live["changed"].items()
        ]
        self.number += 1
        return self.save(f"run{self.number}", "rollback", targets, tar({"blobs/none": ""}), undoes)

    def save(self, run: str, action: str, targets: list[Target], archive: bytes, undoes: str) -> Plan:
        kinds = ("lock", "backup", "stage", "install", "unlock")
        plan = Plan(
            1, run, action, "host", "me", "now", "/nonexistent/python", str(self.state), str(self.site), "",
            "p", "1", "v", sha(archive), f"release-{run}", targets, [StepSpec(k, k, 600.0) for k in kinds],
            undoes=undoes,
        )  # fmt: skip
        run_dir = self.site_dir / "runs" / run
        run_dir.mkdir(parents=True)
        durable.write_json(run_dir / layout.PLAN, to_dict(plan))
        (run_dir / layout.PAYLOAD).write_bytes(archive)
        return plan

    def run(self, plan: Plan) -> int:
        run_dir = self.site_dir / "runs" / plan.run
        ctx = runner.open_context(run_dir, plan)
        try:
            return runner.settle(ctx, runner.execute(ctx))
        finally:
            if ctx.lock is not None:
                ctx.lock._lock.release()  # what the end of the process does
            os.close(ctx.journal._fd)

    def recover(self, run: str) -> int:
        lock = SiteLock(self.site_dir)
        lock.acquire("recovery", "me", "recover")
        alive = FileLock(self.site_dir / "runs" / run / layout.ALIVE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resume, "FileLock", lambda path: alive)
            try:
                return resume.run_recovery(self.site_dir / "runs" / run, lock.fd)
            finally:  # what the end of the process does
                alive.release()
                lock._lock.release()

    def leftovers(self) -> list[str]:
        return [str(p) for p in self.site.rglob(".ddtree-tmp-*")]


WANTED: dict[str, str | None] = {
    "a.py": "a = 2\n",
    "old/b.py": None,
    "c.py": "c = 2\n",
    "d.py": "d = 2\n",
    "new/deep/e.py": "e = 2\n",
    "new/f.txt": "f\n",
}


@contextlib.contextmanager
def disk(monkeypatch: pytest.MonkeyPatch, made: Disk) -> Any:
    """Steps and undos use this disk."""
    with monkeypatch.context() as patch:

        def files(ctx: Context) -> Files:
            return Files([ctx.plan.site], layout.site_key(ctx.plan.site), made)

        patch.setattr(Context, "files", files)
        yield


def crash_and_recover(  # noqa: PLR0917
    site: Site, plan: Plan, monkeypatch: pytest.MonkeyPatch, k: int, after: bool, again: int = 0
) -> tuple[bool, str]:
    """Run with a crash at change k, then recover (with a second crash at `again`). (crashed, end state)."""
    failing = Failing(k, after)
    crashed = False
    with disk(monkeypatch, failing):
        try:
            site.run(plan)
        except Crash:
            crashed = True
    run_dir = site.site_dir / "runs" / plan.run
    if crashed and releases.unfinished(run_dir):
        if again:
            with disk(monkeypatch, Failing(again, after)), contextlib.suppress(Crash):
                site.recover(plan.run)
        if releases.unfinished(run_dir):
            assert site.recover(plan.run) in (0, 1)
    ends = [e for e in read(run_dir / layout.JOURNAL)[0] if e["e"] == "end"]
    return crashed, ends[-1]["verdict"] if ends else "none"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("again", [0, 1, 3, 7])
def test_a_crash_at_any_change_ends_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, after: bool, again: int
) -> None:
    k = 0
    crashed = True
    while crashed:
        k += 1
        site = Site(tmp_path / str(k))
        before = site.snapshot()
        plan = site.plan(WANTED)
        crashed, verdict = crash_and_recover(site, plan, monkeypatch, k, after, again)
        if crashed:
            assert verdict != "pass"
            assert tree.changes(before, site.snapshot()) == [], f"change {k}"
            assert site.leftovers() == []
            assert layout.read_json(site.site_dir / "installed.json") is None
        else:
            assert verdict == "pass"
            assert (site.package / "a.py").read_text() == "a = 2\n"
            assert not (site.package / "d.pyc").exists()
    assert k > 25  # it did crash, in many places


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_change_of_a_rollback_ends_as_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, after: bool
) -> None:
    k = 0
    crashed = True
    while crashed:
        k += 1
        site = Site(tmp_path / str(k))
        original = site.snapshot()
        first = site.plan(WANTED)
        assert site.run(first) == 0
        installed = json.dumps(layout.read_json(site.site_dir / "installed.json"))
        released = site.snapshot()
        plan = site.back(first.run)
        crashed, verdict = crash_and_recover(site, plan, monkeypatch, k, after)
        if crashed:
            assert tree.changes(released, site.snapshot()) == [], f"change {k}"
            assert json.dumps(layout.read_json(site.site_dir / "installed.json")) == installed
        else:
            assert verdict == "pass"
            assert tree.changes(original, site.snapshot()) == []
            assert layout.read_json(site.site_dir / "installed.json") is None
        assert site.leftovers() == []
    assert k > 20


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["rollout", "rollback"]),
            st.dictionaries(
                st.sampled_from(sorted(WANTED)), st.sampled_from([None, "x = 1\n", "x = 2\n"]), min_size=1
            ),
            st.integers(1, 60),
            st.booleans(),
            st.integers(0, 12),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_sequence_of_runs_crashes_and_recoveries(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    steps: list[tuple[str, dict[str, str | None], int, bool, int]],
) -> None:
    """Each run ends before or after; a rollback after a good rollout gives back what was before that."""
    site = Site(tmp_path_factory.mktemp("s"))
    history: dict[str, dict[str, str]] = {}
    for action, wanted, k, after, again in steps:
        live = layout.read_json(site.site_dir / "installed.json")
        before = site.snapshot()
        if action == "rollback" and not live:
            continue
        plan = site.plan(wanted) if action == "rollout" else site.back(live["release"])
        _, verdict = crash_and_recover(site, plan, monkeypatch, k, after, again)
        if verdict != "pass":
            assert tree.changes(before, site.snapshot()) == []
            assert layout.read_json(site.site_dir / "installed.json") == live
        elif action == "rollout":
            history[plan.run] = before
            for rel, content in wanted.items():
                path = site.package / rel
                assert (path.read_text() if path.exists() else None) == content
        else:
            assert tree.changes(history[live["release"]], site.snapshot()) == []
        assert site.leftovers() == []
        assert bytecode.stale([str(p) for p in site.site.rglob("*.py")]) == []


class Full(Disk):
    """From the k-th new file on, there is no space left; and it stays so."""

    def __init__(self, k: int) -> None:
        self.left = k

    def _take(self, path: str) -> None:
        self.left -= 1
        if self.left <= 0:
            raise OSError(28, "No space left on device", path)

    def create(self, path: str, *args: Any, **kwargs: Any) -> None:
        self._take(path)
        super().create(path, *args, **kwargs)

    def mkdir(self, path: str, *args: Any, **kwargs: Any) -> None:
        self._take(path)
        super().mkdir(path, *args, **kwargs)


def test_a_disk_that_is_full_from_any_point_on_ends_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 0
    code = 1
    while code:
        k += 1
        site = Site(tmp_path / str(k))
        before = site.snapshot()
        plan = site.plan(WANTED)
        with disk(monkeypatch, Full(k)):
            code = site.run(plan)
        if code:
            end = read(site.site_dir / "runs" / plan.run / layout.JOURNAL)[0][-1]
            assert (end["exit"], end["step"]) == (1, "install"), end
            assert "No space left on device" in end["reason"]
            assert tree.changes(before, site.snapshot()) == []
            assert site.leftovers() == []
    assert k > 5
