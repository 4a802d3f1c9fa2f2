"""The payload archive: unpacked without trusting it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tarfile

LIMIT = 4 * 1024**3  # bytes unpacked


class BadArchive(ValueError):
    """The archive holds something that it must not, or is not the one that was planned."""


def digest(path: Path) -> str:
    value = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(1 << 20):
            value.update(chunk)
    return value.hexdigest()


def unpack(archive: Path, folder: Path, expected: str) -> list[str]:
    """Unpack regular files below `folder` (made here, mode 0755, files 0644). Returns their names.

    Raises BadArchive for another digest, absolute names, `..`, links, devices, names given twice, and
    OSError.
    """
    import tarfile  # with all its compressors; a launch only needs the digest

    found = digest(archive)
    if found != expected:
        raise BadArchive(f"the payload's digest is {found[:12]}, the plan says {expected[:12]}")
    folder.mkdir(mode=0o755)
    names: list[str] = []
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _check(member, names)
                path = folder / member.name
                if member.isdir():
                    path.mkdir(mode=0o755, parents=True, exist_ok=True)
                    continue
                total += member.size
                if total > LIMIT:
                    raise BadArchive(f"unpacks to more than {LIMIT} bytes")
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                _write(tar, member, path)
                names.append(member.name)
    except (tarfile.TarError, EOFError) as error:
        raise BadArchive(f"not a readable tar.gz: {error}") from None
    return names


def _check(member: tarfile.TarInfo, names: list[str]) -> None:
    parts = member.name.split("/")
    if (
        member.name.startswith("/")
        or ".." in parts
        or "\0" in member.name
        or os.path.normpath(member.name) != member.name
    ):
        raise BadArchive(f"{member.name!r} leaves the payload's root")
    if not (member.isreg() or member.isdir()):
        raise BadArchive(f"{member.name!r} is a link or a device")
    if member.name in names:
        raise BadArchive(f"{member.name!r} is there twice")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb") as sink:
        while chunk := source.read(1 << 20):
            sink.write(chunk)
