"""What comes over a descriptor, to the byte: what follows it is read by others."""

from __future__ import annotations

import os
from pathlib import Path


def line(fd: int) -> bytes:
    """A line, or what there was of it at the end."""
    found = b""
    while not found.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            break
        found += byte
    return found


def into_file(fd: int, path: Path, length: int) -> None:
    """Exactly `length` bytes into a new file, durably. Raises EOFError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
        while length:
            data = os.read(fd, min(length, 1 << 20))
            if not data:
                raise EOFError(f"the connection ended {length} bytes before the end of {path.name}")
            length -= len(data)
            out.write(data)
        out.flush()
        os.fsync(out.fileno())
