"""A power cut loses what was not fsynced: a model of that under the runner's file layer and its journal.

The model keeps, for every folder with changes that were not fsynced, its entries as they last were on the
disk; of a file, how much of it was fsynced. `lose` makes all of that true, as the next boot would find it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.state import layout, releases
from ddtree_deploy.onhost.state.journal import read
from ddtree_deploy.onhost.venv import tree
from ddtree_deploy.onhost.venv.disk import Disk

from .test_crash import WANTED, Crash, Site, disk


class Lossy(Disk):
    """Counts changes, crashes before the k-th (0: never), and knows what a power cut would lose."""

    def __init__(self, stash: Path, root: Path, k: int = 0, *, forgets: str = "") -> None:
        self.stash, self.roots, self.k, self.forgets = stash, [root], k, forgets
        self.created: set[int] = set()  # inodes
        self.count = 0
        self.folders: dict[
            str, dict[str, Path | None]
        ] = {}  # folder -> entry -> what it was (None: a folder)
        self.synced: dict[int, int] = {}  # inode -> bytes on the disk
        stash.mkdir()

    def fsync(self, fd: int) -> None:
        """Stands for os.fsync."""
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            if self.forgets != "files" or info.st_ino not in self._venv_files():
                self.synced[info.st_ino] = info.st_size
        elif self.forgets != "folders":
            self.folders.pop(str(Path(f"/proc/self/fd/{fd}").readlink()), None)

    def _venv_files(self) -> set[int]:
        return {p.stat().st_ino for root in self.roots for p in root.rglob("*") if p.is_file()}

    def _touch(self, *paths: str) -> None:
        self.count += 1
        if self.count == self.k:
            raise Crash
        for path in paths:
            folder = os.path.realpath(Path(path).parent)
            if folder not in self.folders:
                self.folders[folder] = {p.name: self._keep(p) for p in Path(folder).iterdir()}

    def _keep(self, path: Path) -> Path | None:
        if path.is_dir() and not path.is_symlink():
            return None
        kept = self.stash / f"{len(list(self.stash.iterdir()))}"
        os.link(path, kept, follow_symlinks=False)
        return kept

    def lose(self) -> None:
        """The power is gone, and back."""
        for folder, entries in sorted(self.folders.items()):
            if not Path(folder).is_dir():
                continue  # itself an entry that was lost
            for path in list(Path(folder).iterdir()):
                if path.name not in entries:
                    _remove(path)
            for name, kept in entries.items():
                path = Path(folder, name)
                if kept is None:
                    path.mkdir(exist_ok=True)
                elif not path.exists() or path.lstat().st_ino != kept.lstat().st_ino:
                    path.unlink(missing_ok=True)
                    os.link(kept, path, follow_symlinks=False)
        self.folders.clear()
        for path in self.roots:
            for file in (p for p in path.rglob("*") if p.is_file() and not p.is_symlink()):
                inode = file.stat().st_ino
                if inode in self.created and inode not in self.synced:
                    os.truncate(file, 0)

    def create(self, path: str, *args: Any, **kwargs: Any) -> None:
        self._touch(path)
        super().create(path, *args, **kwargs)
        self.created.add(Path(path).stat().st_ino)

    def symlink(self, target: str, path: str, *args: Any) -> None:
        self._touch(path)
        super().symlink(target, path, *args)

    def link(self, source: str, path: str) -> None:
        self._touch(path)
        super().link(source, path)

    def rename(self, source: str, path: str) -> None:
        self._touch(source, path)
        super().rename(source, path)

    def unlink(self, path: str) -> None:
        self._touch(path)
        super().unlink(path)

    def mkdir(self, path: str, *args: Any) -> None:
        self._touch(path)
        super().mkdir(path, *args)

    def rmdir(self, path: str) -> None:
        self._touch(path)
        super().rmdir(path)

    def sync_folder(self, path: str) -> None:
        self._touch()
        super().sync_folder(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink()


def cut_short(journal: Path, lossy: Lossy) -> None:
    """Lines of the journal that were not fsynced are gone."""
    if journal.exists():
        os.truncate(journal, lossy.synced.get(journal.stat().st_ino, 0))


def run_and_lose(site: Site, lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """A run with a power cut at the k-th change (or after its end). (cut in the middle, verdict)."""
    plan = site.plan(WANTED)
    journal = site.site_dir / "runs" / plan.run / layout.JOURNAL
    crashed = False
    monkeypatch.setattr(os, "fsync", lossy.fsync)
    with disk(monkeypatch, lossy):
        try:
            site.run(plan)
        except Crash:
            crashed = True
    lossy.lose()
    cut_short(journal, lossy)
    if releases.unfinished(journal.parent):
        assert site.recover(plan.run) in (0, 1)
    ends = [e for e in read(journal)[0] if e["e"] == "end"]
    return crashed, ends[-1]["verdict"] if ends else "none"


def test_a_power_cut_at_any_change_ends_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    k = 0
    crashed = True
    while crashed:
        k += 1
        site = Site(tmp_path / str(k))
        before = site.snapshot()
        crashed, verdict = run_and_lose(site, Lossy(tmp_path / f"stash{k}", site.site, k), monkeypatch)
        if crashed:
            assert verdict != "pass"
            assert tree.changes(before, site.snapshot()) == [], f"change {k}"
        else:
            assert verdict == "pass"
            for rel, content in WANTED.items():
                path = site.package / rel
                assert (path.read_text() if path.exists() else None) == content, rel
            assert not (site.package / "d.pyc").exists()
        assert site.leftovers() == []
    assert k > 25


@pytest.mark.parametrize(("forgets", "left"), [("folders", "a = 1\n"), ("files", "")])
def test_the_model_notices_what_is_not_fsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, forgets: str, left: str
) -> None:
    """The proof of the proof: without the fsync, a power cut takes a run that has passed."""
    site = Site(tmp_path / "site")
    run_and_lose(site, Lossy(tmp_path / "stash", site.site, forgets=forgets), monkeypatch)
    assert (site.package / "a.py").read_text() == left
