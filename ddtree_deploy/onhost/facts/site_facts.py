"""What is installed in the venv, as its files tell."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

from ..venv.files import Files
from ..wire.facts import packed
from ..wire.protocol import FileState

CONTENT_LIMIT = 1 << 20


def cuda_of(torch_folder: str) -> str:
    """The CUDA that torch was built for, "" for none; from version.py: importing torch takes seconds."""
    try:
        with open(os.path.join(torch_folder, "version.py"), encoding="utf-8", errors="replace") as f:
            text = f.read(65536)
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\w.]+)['\"]", text, re.M)
    return found[1] if found else ""


def freeze(site: str) -> list[str]:
    """`name==version` of each distribution in site-packages, by the names of their dist-info folders."""
    parts = (folder.stem.partition("-") for folder in Path(site).glob("*.dist-info"))
    return sorted(f"{title.replace('_', '-').lower()}=={version}" for title, dash, version in parts if dash)


def path_of(ref: str, site: str, package_dir: str) -> str:
    """The absolute path of `site:REL` or `sglang:REL`; "" without the package. Raises ValueError."""
    room, _, rel = ref.partition(":")
    if not rel or rel.startswith("/") or ".." in rel.split("/") or os.path.normpath(rel) != rel:
        raise ValueError(f"{ref}: not a plain relative path")
    base = site if room == "site" else package_dir
    return os.path.join(base, rel) if base else ""


def file_state(files: Files, path: str, contents: bool) -> FileState:
    """One path as it is; never raises for what the path is."""
    if not path:
        return FileState(path, "absent")
    try:
        entry = files.look(path)
    except OSError:  # not ours to read
        info = os.lstat(path)
        return FileState(path, "other", "unreadable", stat.S_IMODE(info.st_mode), info.st_nlink, info.st_size)
    state = FileState(path, entry.kind, entry.sha256, entry.mode, entry.nlink, entry.size, entry.link)
    if contents and entry.kind == "file" and entry.size <= CONTENT_LIMIT:
        return replace(state, content_b64=packed(files.disk.read(path)))
    return state
