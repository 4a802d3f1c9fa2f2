"""Files of the system that are replaced or removed as a whole, and survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from ..venv.files import TEMP_PREFIX
from .layout import sync_folder


def replace(path: Path, data: bytes, mode: int) -> None:
    """Put `data` at `path` in one step and make it durable."""
    temp = _beside(path)
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
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file durably, and what a killed `replace` of it left; absent is fine."""
    path.unlink(missing_ok=True)
    tidy(path)
    if path.parent.is_dir():
        sync_folder(path.parent)


def tidy(path: Path) -> None:
    """Remove what a killed `replace` left beside a file that is right as it is."""
    if os.path.lexists(_beside(path)):  # a read-only filesystem refuses to remove what is not there, too
        _beside(path).unlink()


def _beside(path: Path) -> Path:
    """Where the new content is written: a name that is known, so that it is found again."""
    return path.with_name(f"{TEMP_PREFIX}{path.name}")
