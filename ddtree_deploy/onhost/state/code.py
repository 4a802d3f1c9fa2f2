"""Our own sources on the host: unpacked and compiled once a version, and run from there by every run of it.

`STATE/code/PYTHON-DIGEST` is complete and durable from the moment it has its name, and is not written to any
more: a power cut must not leave half a module to the boot guard. Each run has a link to it, so that it is
recovered by the code that made it.
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import sys
import zipfile
from pathlib import Path

from ..venv.disk import sync
from . import layout

CODE = "code"
KEEP = 4  # besides those that runs refer to: somebody may be asking for facts with them


def place(run_dir: Path, archive: bytes) -> None:
    """Link `run_dir` to the sources in `archive` (a zip), which are unpacked where they are not there yet.

    Raises OSError.
    """
    state_dir = run_dir.parents[3]  # STATE/sites/KEY/runs/RUN
    digest = hashlib.sha256(archive).hexdigest()
    folder = state_dir / CODE / f"{sys.implementation.cache_tag}-{digest}"  # where the boot code looks, too
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # nobody removes what we are about to refer to
        with zipfile.ZipFile(io.BytesIO(archive)) as sources:
            if not _is_whole(folder, sources):
                _unpack(folder, sources)
        (run_dir / layout.RUNNER).symlink_to(os.path.relpath(folder, run_dir))
        _clean(state_dir, folder)
    finally:
        os.close(lock)


def _is_whole(folder: Path, sources: zipfile.ZipFile) -> bool:
    try:
        return all((folder / name).read_bytes() == sources.read(name) for name in sources.namelist())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _unpack(folder: Path, sources: zipfile.ZipFile) -> None:
    fresh = folder.with_name(f".{folder.name}.tmp")
    for old in (fresh, folder):  # of somebody who died here; or changed by hand
        if old.is_dir():
            shutil.rmtree(old)
    try:
        sources.extractall(fresh)
        compileall.compile_dir(fresh, quiet=2, stripdir=str(fresh), prependdir=str(folder))
        for place, _, names in os.walk(fresh):
            for name in (*names, ""):
                sync(os.path.join(place, name))
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        with contextlib.suppress(OSError):  # there are other versions
            folder.parent.rmdir()
        raise
    sync(folder.parent)


def _clean(state_dir: Path, current: Path) -> None:
    """Remove what no run refers to, but for the newest."""
    used = {current, *(link.resolve() for link in state_dir.glob(f"sites/*/runs/*/{layout.RUNNER}"))}
    free = [path for path in current.parent.iterdir() if path not in used]
    for path in sorted(free, key=lambda p: p.lstat().st_mtime)[:-KEEP]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:  # what older versions kept here
            path.unlink(missing_ok=True)
