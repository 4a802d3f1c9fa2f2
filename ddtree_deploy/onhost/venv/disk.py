"""Every file system call that must survive a power cut, in one place.

A test may put a model file system underneath by replacing `DISK`; nothing else in `onhost` that must be
durable calls
`os` for it. Paths are strings; nothing here follows a final symlink.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file durable, or the entries of a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Attributes:
    """What belongs to a file besides its bytes. Times in ns."""

    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    xattrs: dict[str, bytes]


class Disk:
    """The real file system."""

    def lstat(self, path: str) -> os.stat_result | None:
        """None where nothing is (also below a path that is no folder)."""
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as f:
            return f.read()

    def realpath(self, path: str) -> str:
        return os.path.realpath(path)

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def create(self, path: str, data: bytes, attributes: Attributes) -> None:
        """Write a *new* file and fsync it. An existing path is an error, never written into."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            self._apply(fd, attributes)
            os.fsync(fd)
        except BaseException:
            os.unlink(path)  # half a file helps nobody, least of all a disk that is full
            raise
        finally:
            os.close(fd)

    def _apply(self, fd: int, attributes: Attributes) -> None:
        info = os.fstat(fd)
        if (info.st_uid, info.st_gid) != (attributes.uid, attributes.gid):
            os.fchown(fd, attributes.uid, attributes.gid)  # before chmod: it clears set-id bits
        os.fchmod(fd, attributes.mode)
        for name, value in attributes.xattrs.items():
            try:
                os.setxattr(fd, name, value)
            except OSError:  # security.* and trusted.* are the kernel's and root's to give
                if name.startswith(("user.", "system.")):
                    raise
        os.utime(fd, ns=(attributes.atime_ns, attributes.mtime_ns))

    def xattrs(self, path: str) -> dict[str, bytes]:
        """All extended attributes that this user may read; none where the file system has none."""
        try:
            names = os.listxattr(path, follow_symlinks=False)
        except OSError:
            return {}
        found = {}
        for name in names:
            with contextlib.suppress(OSError):
                found[name] = os.getxattr(path, name, follow_symlinks=False)
        return found

    def symlink(self, target: str, path: str, uid: int, gid: int, mtime_ns: int) -> None:
        os.symlink(target, path)
        info = os.lstat(path)
        if (info.st_uid, info.st_gid) != (uid, gid):
            os.chown(path, uid, gid, follow_symlinks=False)
        os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)

    def link(self, source: str, path: str) -> None:
        os.link(source, path, follow_symlinks=False)

    def rename(self, source: str, path: str) -> None:
        os.rename(source, path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str, mode: int, uid: int = -1, gid: int = -1) -> None:
        os.mkdir(path, 0o700)
        info = os.lstat(path)
        if uid >= 0 and (info.st_uid, info.st_gid) != (uid, gid):
            os.chown(path, uid, gid, follow_symlinks=False)
        os.chmod(path, mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        sync(path)


DISK = Disk()
