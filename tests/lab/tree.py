"""What a venv is, as a value: to say that a host is *as before*, and where it is not.

Written apart from the product's own digest, so that the two can disagree.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

State = dict[str, tuple[object, ...]]


def state(root: Path, *, skip: tuple[str, ...] = ("__pycache__",)) -> State:
    """Relative path -> (kind, mode, owner, group, content or link target, xattrs) of a whole folder."""
    found: State = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in skip]
        for name in [".", *files, *(n for n in folders if Path(folder, n).is_symlink())]:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = _entry(path)
    return found


def _entry(path: Path) -> tuple[object, ...]:
    info = path.lstat()
    kind = stat.S_IFMT(info.st_mode)
    content = ""
    if stat.S_ISLNK(info.st_mode):
        content = str(path.readlink())
    elif stat.S_ISREG(info.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    names = sorted(os.listxattr(path, follow_symlinks=False))
    attributes = tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    return (kind, oct(info.st_mode & 0o7777), info.st_uid, info.st_gid, content, attributes)


def difference(before: State, after: State) -> list[str]:
    """One line for each path that is not the same; empty when all are."""
    lines = [f"gone: {path}" for path in sorted(before.keys() - after.keys())]
    lines += [f"new: {path}" for path in sorted(after.keys() - before.keys())]
    lines += [
        f"changed: {path}: {before[path]} -> {after[path]}"
        for path in sorted(before.keys() & after.keys())
        if before[path] != after[path]
    ]
    return lines


def stale_bytecode(root: Path) -> list[str]:
    """Compiled files that the host's Python would load although their source says something else."""
    script = Path(__file__).with_name("stale.py")
    done = subprocess.run(
        ["/usr/bin/python3", "-I", script, root], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()
