"""The file layer: what is replaced, kept and restored, on a real file system."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_deploy.onhost.venv import bytecode, tree
from ddtree_deploy.onhost.venv.disk import Disk
from ddtree_deploy.onhost.venv.files import Files, FilesError, sha256
from tests.root import need_root


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    (tmp_path / "backup").mkdir()
    return folder


def files(venv: Path, disk: Disk | None = None) -> Files:
    return Files([str(venv)], "0123456789", disk or Disk())


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_case_08_a_hard_linked_sibling_keeps_its_bytes(venv: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache.py"
    cache.write_text("old")
    os.link(cache, venv / "x.py")
    files(venv).place(str(venv / "x.py"), b"new", 0o644)
    assert cache.read_text() == "old"
    assert (venv / "x.py").read_text() == "new"


def test_restoring_gives_back_the_inode_itself(venv: Path, tmp_path: Path) -> None:
    path = venv / "x.py"
    path.write_text("old")
    before = path.stat()
    hand = files(venv)
    entry = hand.keep(str(path), str(tmp_path / "backup"), "b0")
    hand.place(str(path), b"new", 0o644)
    assert hand.restore(entry, str(tmp_path / "backup"))
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not hand.restore(entry, str(tmp_path / "backup"))
    assert names(venv) == ["x.py"]


class NoLinks(Disk):
    """A backup folder on another file system."""

    def link(self, source: str, path: str) -> None:
        raise OSError(18, "Invalid cross-device link", path)


def test_case_09_across_file_systems_mode_owner_times_and_xattrs_are_kept(venv: Path, tmp_path: Path) -> None:
    path = venv / "x.py"
    path.write_text("old")
    path.chmod(0o640)
    os.utime(path, ns=(1_600_000_000_123_456_789, 1_600_000_001_123_456_789))
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    before = tree.digest(str(venv))
    hand = files(venv, NoLinks())
    entry = hand.keep(str(path), str(tmp_path / "backup"), "b0")
    hand.place(str(path), b"new", 0o644)
    assert os.getxattr(path, "user.note") == b"kept"
    hand.restore(entry, str(tmp_path / "backup"))
    assert tree.digest(str(venv)) == before
    assert path.stat().st_mtime_ns == 1_600_000_001_123_456_789


def test_case_07_a_symlink_is_replaced_and_comes_back(venv: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.py"
    target.write_text("theirs")
    path = venv / "x.py"
    path.symlink_to(target)
    before = tree.digest(str(venv))
    hand = files(venv)
    entry = hand.keep(str(path), str(tmp_path / "backup"), "b0")
    hand.place(str(path), b"new", 0o644)
    assert target.read_text() == "theirs"
    assert not path.is_symlink()
    hand.restore(entry, str(tmp_path / "backup"))
    assert path.is_symlink()
    assert tree.digest(str(venv)) == before


def test_case_07_a_symlink_to_equal_content_is_not_the_file(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "e.py").write_text("same")
    (venv / "x.py").symlink_to(tmp_path / "e.py")
    assert files(venv).identity(str(venv / "x.py")) != sha256(b"same")


@pytest.mark.parametrize("path", ["../x.py", "link/x.py", "a/../../x.py", "./x.py"])
def test_nothing_outside_the_roots_is_touched(venv: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (venv / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(FilesError):
        files(venv).place(f"{venv}/{path}", b"evil", 0o644)
    assert names(tmp_path / "outside") == []
    assert not (tmp_path / "x.py").exists()


def test_a_folder_is_never_replaced(venv: Path) -> None:
    (venv / "x.py").mkdir()
    with pytest.raises(FilesError, match="is a dir"):
        files(venv).place(str(venv / "x.py"), b"new", 0o644)


def test_a_folder_is_neither_removed_nor_restored_over(venv: Path, tmp_path: Path) -> None:
    path = venv / "x.py"
    hand = files(venv)
    absent = hand.keep(str(path), str(tmp_path / "backup"), "b0")
    (path / "theirs").mkdir(parents=True)
    with pytest.raises(FilesError, match="is a dir, not a file"):
        hand.remove(str(path))
    with pytest.raises(FilesError, match="is a dir, not a file"):
        hand.keep(str(path), str(tmp_path / "backup"), "b1")
    with pytest.raises(FilesError, match="is a dir now, was absent"):
        hand.restore(absent, str(tmp_path / "backup"))
    assert names(path) == ["theirs"]


def test_a_backup_that_was_changed_is_not_restored(venv: Path, tmp_path: Path) -> None:
    path = venv / "x.py"
    path.write_text("old")
    hand = files(venv)
    entry = hand.keep(str(path), str(tmp_path / "backup"), "b0", link=False)
    hand.place(str(path), b"new", 0o644)
    (tmp_path / "backup" / "b0").write_text("rot")
    with pytest.raises(FilesError, match="was changed"):
        hand.restore(entry, str(tmp_path / "backup"))
    assert path.read_text() == "new"


def test_a_full_disk_leaves_the_old_file_and_no_temporary(venv: Path) -> None:
    class Full(Disk):
        def rename(self, source: str, path: str) -> None:
            raise OSError(28, "No space left on device", path)

    (venv / "x.py").write_text("old")
    with pytest.raises(OSError, match="No space"):
        files(venv, Full()).place(str(venv / "x.py"), b"new", 0o644)
    assert names(venv) == ["x.py"]
    assert (venv / "x.py").read_text() == "old"


def test_a_full_disk_while_writing_leaves_no_temporary(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    hand = files(venv)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        hand.place(str(venv / "x.py"), b"new", 0o644)
    monkeypatch.undo()
    assert names(venv) == []


def test_new_files_belong_to_the_folders_owner(venv: Path) -> None:
    need_root("needs root to have another owner")
    os.chown(venv, 1234, 5678)
    hand = files(venv)
    hand.make_folder(str(venv / "sub"))
    hand.place(str(venv / "sub" / "x.py"), b"new", 0o644)
    for path in (venv / "sub", venv / "sub" / "x.py"):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 5678)
    assert stat.S_IMODE((venv / "sub" / "x.py").stat().st_mode) == 0o644


def test_a_folder_with_foreign_files_stays(venv: Path) -> None:
    hand = files(venv)
    hand.make_folder(str(venv / "sub"))
    (venv / "sub" / "theirs").write_text("x")
    assert hand.remove_folder(str(venv / "sub")) == ["theirs"]
    assert names(venv / "sub") == ["theirs"]


def test_a_folder_with_only_bytecode_goes(venv: Path) -> None:
    hand = files(venv)
    hand.make_folder(str(venv / "sub"))
    (venv / "sub" / "x.py").write_text("x = 1")
    py_compile.compile(str(venv / "sub" / "x.py"))
    hand.remove(str(venv / "sub" / "x.py"))
    assert hand.remove_folder(str(venv / "sub")) == []
    assert names(venv) == []


def test_only_our_own_temporaries_are_swept(venv: Path) -> None:
    for name in (".ddtree-tmp-01234567-1-1", ".ddtree-tmp-89abcdef-1-1", "x.py"):
        (venv / name).write_text("")
    files(venv).sweep(str(venv))
    assert names(venv) == [".ddtree-tmp-89abcdef-1-1", "x.py"]


# ---- bytecode -------------------------------------------------------------------------------------------


def imported(venv: Path) -> str:
    """What a fresh interpreter imports as `x`, with bytecode caching on."""
    code = f"import sys; sys.path.insert(0, {str(venv)!r}); import x; print(x.V)"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_case_10_with_equal_size_and_mtime_the_imported_code_is_the_files(venv: Path, tmp_path: Path) -> None:
    path = venv / "x.py"
    path.write_text("V = 1\n")
    future = 4_000_000_000  # also a clock that is behind the file
    os.utime(path, (future, future))
    assert imported(venv) == "1"
    hand = files(venv)
    entry = hand.keep(str(path), str(tmp_path / "backup"), "b0")
    hand.place(str(path), b"V = 2\n", 0o644)
    assert imported(venv) == "2"
    assert bytecode.stale([str(path)]) == []
    hand.restore(entry, str(tmp_path / "backup"))
    assert imported(venv) == "1"
    assert bytecode.stale([str(path)]) == []


def test_restoring_over_a_file_of_equal_stamp_moves_the_stamp(venv: Path, tmp_path: Path) -> None:
    path = venv / "x.py"
    path.write_text("V = 1\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    hand = files(venv)
    entry = hand.keep(str(path), str(tmp_path / "backup"), "b0")
    hand.remove(str(path))
    path.write_text("V = 2\n")  # a hand edit that also set the time back
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert imported(venv) == "2"
    hand.restore(entry, str(tmp_path / "backup"))
    assert path.stat().st_mtime == 1_700_000_001, "bytecode that is kept elsewhere is not valid either"
    assert imported(venv) == "1"


@pytest.mark.parametrize(
    "mode", [py_compile.PycInvalidationMode.TIMESTAMP, py_compile.PycInvalidationMode.UNCHECKED_HASH]
)
def test_stale_bytecode_is_found(venv: Path, mode: py_compile.PycInvalidationMode) -> None:
    path = venv / "x.py"
    path.write_text("V = 1\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    compiled = py_compile.compile(str(path), invalidation_mode=mode)
    assert bytecode.stale([str(path)]) == []
    path.write_text("V = 2\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert bytecode.stale([str(path)]) == [compiled]
    assert imported(venv) == "1"  # so it is: Python itself is fooled
    bytecode.purge(str(path))
    assert imported(venv) == "2"


def test_bytecode_whose_source_is_gone_is_stale_where_python_would_load_it(venv: Path) -> None:
    path = venv / "x.py"
    path.write_text("V = 1\n")
    py_compile.compile(str(path), cfile=str(venv / "x.pyc"))
    path.unlink()
    assert imported(venv) == "1"
    assert bytecode.stale([str(path)]) == [str(venv / "x.pyc")]


def test_all_optimisation_levels_are_removed(venv: Path) -> None:
    path = venv / "x.py"
    path.write_text("V = 1\n")
    for level in (0, 1, 2):
        py_compile.compile(str(path), optimize=level)
    other = venv / "xy.py"
    other.write_text("V = 1\n")
    py_compile.compile(str(other))
    bytecode.purge(str(path))
    assert names(venv / "__pycache__") == [Path(importlib.util.cache_from_source(str(other))).name]


# ---- any change, then back ------------------------------------------------------------------------------

kinds = st.sampled_from(["absent", "file", "symlink"])
contents = st.sampled_from([b"", b"V = 1\n", b"V = 2\n", b"V = 333\n"])
modes = st.sampled_from([0o644, 0o600, 0o755])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(data=st.data(), links=st.booleans())
def test_whatever_was_there_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, links: bool
) -> None:
    root = tmp_path_factory.mktemp("t")
    venv = root / "site"
    venv.mkdir()
    (root / "backup").mkdir()
    paths = [venv / n for n in ("a.py", "b.py", "c.txt")]
    for path in paths:
        kind = data.draw(kinds)
        if kind == "file":
            path.write_bytes(data.draw(contents))
            path.chmod(data.draw(modes))
        elif kind == "symlink":
            path.symlink_to(data.draw(st.sampled_from(["a.py", "/nowhere", "../out"])))
    before = tree.snapshot(str(venv))
    hand = files(venv, Disk() if links else NoLinks())
    kept = [hand.keep(str(p), str(root / "backup"), p.name) for p in paths]
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=6)):
        if data.draw(st.booleans()):
            hand.place(str(path), data.draw(contents), data.draw(modes))
        else:
            hand.remove(str(path))
    for _ in range(2):  # restoring twice is restoring once
        for entry in kept:
            hand.restore(entry, str(root / "backup"))
        assert tree.changes(before, tree.snapshot(str(venv))) == []
