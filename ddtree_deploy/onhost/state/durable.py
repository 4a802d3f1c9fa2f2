"""Files that are replaced or removed as a whole, and survive a power cut: the state's own, the system's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..venv.disk import sync


def replace(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put `data` at `path` in one step and make it durable."""
    temp = temp_of(path)
    temp.unlink(missing_ok=True)  # of somebody who was killed here; the venv's lock lets nobody else in
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            os.fchmod(f.fileno(), mode)
            f.flush()
            os.fsync(f.fileno())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace a state file, 0600."""
    replace(path, json.dumps(value, indent=1, sort_keys=True).encode())


def remove(path: Path) -> None:
    """Remove a file durably, and what a killed `replace` of it left; absent is fine."""
    path.unlink(missing_ok=True)
    tidy(path)
    if path.parent.is_dir():
        sync(path.parent)


def tidy(path: Path) -> None:
    """Remove what a killed `replace` left beside a file that is right as it is."""
    if os.path.lexists(temp_of(path)):  # a read-only filesystem refuses to remove what is not there, too
        temp_of(path).unlink()


def temp_of(path: Path) -> Path:
    """Where the new content is written: a name that is known, so that it is found again."""
    return path.with_name(f".{path.name}.tmp")
