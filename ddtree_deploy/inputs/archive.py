"""The payload archive: tar.gz, the same bytes for the same content, on every machine and day."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import PurePosixPath


def build(entries: Mapping[str, bytes]) -> bytes:
    """Pack `entries` (path -> content): sorted, 0644, owner 0, time 0, no folders, no links.

    Raises ValueError for a path that would leave the folder it is unpacked in.
    """
    raw = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(entries):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or str(path) != name or name == ".":
                raise ValueError(f"not a relative path: {name!r}")
            info = tarfile.TarInfo(name)
            info.size = len(entries[name])
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(entries[name]))
    return raw.getvalue()


def digest(data: bytes) -> str:
    """sha256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()
