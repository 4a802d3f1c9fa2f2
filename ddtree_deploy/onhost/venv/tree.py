"""The digest of a package folder: content, mode, owner, links, xattrs; no times, no `__pycache__`."""

from __future__ import annotations

import hashlib
import os
import stat

from .bytecode import CACHE
from .disk import DISK, Disk


def snapshot(root: str, disk: Disk = DISK) -> dict[str, str]:
    """Each path below `root` (itself as `.`) with a digest of what belongs to it. A missing root is empty."""
    found: dict[str, str] = {}
    pending = [(".", root)]
    while pending:
        rel, path = pending.pop()
        info = disk.lstat(path)
        if info is None:
            continue
        head = f"{info.st_mode:o} {info.st_uid}:{info.st_gid} {sorted(disk.xattrs(path).items())!r} "
        body = hashlib.sha256(head.encode())
        if stat.S_ISLNK(info.st_mode):
            body.update(os.fsencode(disk.readlink(path)))
        elif stat.S_ISREG(info.st_mode):
            body.update(disk.read(path))
        found[rel] = body.hexdigest()
        if stat.S_ISDIR(info.st_mode):
            for name in disk.listdir(path):
                if name != CACHE:
                    pending.append((name if rel == "." else f"{rel}/{name}", os.path.join(path, name)))
    return found


def digest(root: str, disk: Disk = DISK) -> str:
    """One sha256 over `snapshot(root)`."""
    lines = [f"{rel}\0{value}\n" for rel, value in sorted(snapshot(root, disk).items())]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Paths that differ between two snapshots, each with `+` (new), `-` (gone) or `~` (changed) in front."""
    marks = []
    for rel in sorted(before.keys() | after.keys()):
        if rel not in before:
            marks.append("+" + rel)
        elif rel not in after:
            marks.append("-" + rel)
        elif before[rel] != after[rel]:
            marks.append("~" + rel)
    return marks
