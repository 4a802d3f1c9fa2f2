"""The installed packages as they will be: a folder for the front of PYTHONPATH that overlays the live ones.

Real folders only along the paths of staged files, symlinks for everything else: some hundred links,
milliseconds, and child processes inherit it. What will be *removed* at the top of site-packages cannot be
hidden this way.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from ..venv.bytecode import CACHE
from .stage import Wanted


def build(root: Path, wanted: list[Wanted], package_dir: str, site: str) -> int:
    """Make the overlay at `root` (new). Returns the number of symlinks."""
    root.mkdir(mode=0o755)
    overlay: dict[str, Wanted] = {}
    for w in wanted:
        overlay[_place(w.path, package_dir, site)] = w
    folders = {str(p) for rel in overlay for p in PurePosixPath(rel).parents} - {"."}
    links = 0
    package = os.path.basename(package_dir)
    for rel in sorted(folders):
        (root / rel).mkdir(mode=0o755)
        head, _, tail = rel.partition("/")
        live = os.path.join(package_dir if package and head == package else os.path.join(site, head), tail)
        for name in _names(live):
            inside = f"{rel}/{name}"
            if inside not in overlay and inside not in folders:
                (root / inside).symlink_to(os.path.join(live, name))
                links += 1
    for rel, w in overlay.items():
        if w.kind == "file":
            (root / rel).write_bytes(Path(w.staged).read_bytes())
            (root / rel).chmod(0o644 | (w.mode & 0o111))
        elif w.kind == "symlink" and w.entry is not None:
            (root / rel).symlink_to(os.path.join(os.path.dirname(w.path), w.entry.link))
    for rel in sorted(
        folders, reverse=True
    ):  # a folder that is to vanish must not stay as a namespace package
        if not any((root / rel).iterdir()):
            (root / rel).rmdir()
    return links


def _place(path: str, package_dir: str, site: str) -> str:
    """Where a live path is in the overlay, relative to its root."""
    if package_dir and path.startswith(package_dir + "/"):
        return os.path.basename(package_dir) + path[len(package_dir) :]
    if path.startswith(site + "/"):
        return path[len(site) + 1 :]
    raise ValueError(f"{path} is neither in {package_dir} nor in {site}")


def _names(folder: str) -> list[str]:
    try:
        return [n for n in sorted(os.listdir(folder)) if n != CACHE]
    except (FileNotFoundError, NotADirectoryError):
        return []
