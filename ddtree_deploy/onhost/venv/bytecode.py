"""Compiled files beside a source: removing them, and finding one that would be loaded though it is stale."""

from __future__ import annotations

import importlib.util
import marshal
import os

from .disk import DISK, Disk

CACHE = "__pycache__"


def of(path: str, disk: Disk = DISK) -> list[str]:
    """The compiled files of one source in its `__pycache__`, for every interpreter and optimisation level."""
    if not path.endswith(".py"):
        return []
    folder, name = os.path.split(path)
    cache = os.path.join(folder, CACHE)
    stem = name[:-3] + "."
    return [
        os.path.join(cache, n)
        for n in disk.listdir(cache)
        if n.startswith(stem) and n.endswith(".pyc") and n.count(".") - name[:-3].count(".") in (2, 3)
    ]


def legacy(path: str) -> str:
    """`x.pyc` beside `x.py`: Python loads it only when the source is gone."""
    return path + "c" if path.endswith(".py") else ""


def purge(path: str, disk: Disk = DISK) -> None:
    """Remove the compiled files of one source (not the legacy one, which is a file of its own)."""
    for compiled in of(path, disk):
        disk.unlink(compiled)


def purge_orphans(folder: str, disk: Disk = DISK) -> None:
    """Remove `folder/__pycache__` when no source is left in `folder`, so that the folder itself can go."""
    cache = os.path.join(folder, CACHE)
    names = disk.listdir(folder)
    if CACHE not in names or any(n.endswith(".py") for n in names):
        return
    compiled = disk.listdir(cache)
    if all(".pyc" in n for n in compiled):  # also `x.pyc.1234`, what an interrupted writer leaves
        for name in compiled:
            disk.unlink(os.path.join(cache, name))
        disk.rmdir(cache)


def stale(paths: list[str], disk: Disk = DISK) -> list[str]:
    """Compiled files (of this interpreter) that would be loaded for one of `paths`, but are not its code.

    A source that is gone with a legacy `.pyc` beside it counts as stale: it would still be imported.
    """
    found = []
    for path in paths:
        if not path.endswith(".py"):
            continue
        if disk.lstat(path) is None:
            old = legacy(path)
            found += [old] if disk.lstat(old) is not None else []
            continue
        real = disk.realpath(path)  # Python follows a link to the source, too
        info = disk.lstat(real)
        if info is None:
            continue
        source = disk.read(real)
        for compiled in of(path, disk):
            data = disk.read(compiled)
            if data[:4] == importlib.util.MAGIC_NUMBER and not _fits(info, source, compiled, data):
                found.append(compiled)
    return found


def _fits(info: os.stat_result, source: bytes, compiled: str, data: bytes) -> bool:
    """True when Python would not load it, or when it is what compiling the source gives."""
    flags = int.from_bytes(data[4:8], "little")
    if flags & 1:  # by its source's hash; where that is not checked, Python would load stale code
        return bool(flags & 2) or importlib.util.source_hash(source) == data[8:16]
    stamp = (int(info.st_mtime), info.st_size)
    if data[8:16] != b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in stamp):
        return True
    level = compiled.rsplit(".", 2)[1]
    optimize = int(level[4:]) if level.startswith("opt-") else 0
    try:
        code = marshal.loads(data[16:])
        fresh = compile(source, code.co_filename, "exec", dont_inherit=True, optimize=optimize)
    except (ValueError, EOFError, TypeError, SyntaxError):
        return False
    return bool(code == fresh)
