"""The only code that writes into a venv.

A file is never written into: new bytes go to a temporary file in the same folder, which is fsynced and
renamed over the old
name, and then the folder is fsynced. So a hard link to a package cache or a sibling venv keeps its bytes, and
at
every instant the name holds either the old file or the new one.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any

from . import bytecode
from .disk import DISK, Attributes, Disk

TEMP_PREFIX = ".ddtree-tmp-"


class FilesError(OSError):
    """A path is not what it has to be; nothing was done to it."""


@dataclass(frozen=True)
class Entry:
    """One path as it was found. `sha256` is of the bytes of a file; see `identity` for the rest."""

    path: str
    kind: str  # absent | file | symlink | dir | other
    sha256: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    nlink: int = 0
    atime_ns: int = 0
    mtime_ns: int = 0
    link: str = ""
    xattrs: dict[str, str] = field(default_factory=dict)  # values in base64
    stored: str = ""  # name of the kept file in the backup folder

    def same(self, other: Entry) -> bool:
        """Equal as the tree digest sees it: content, mode, owner, link, xattrs (not times)."""
        keys = ("kind", "sha256", "mode", "uid", "gid", "link", "xattrs")
        return all(getattr(self, k) == getattr(other, k) for k in keys)

    def difference(self, other: Entry) -> str:
        """What `other` has that this has not, in words; empty when they are the same."""
        if self.kind != other.kind:
            return f"was {self.kind}, is {other.kind}"
        if self.sha256 != other.sha256:
            return f"content was {self.sha256[:12]}, is {other.sha256[:12]}"
        if self.mode != other.mode:
            return f"mode was {self.mode:o}, is {other.mode:o}"
        if (self.uid, self.gid) != (other.uid, other.gid):
            return f"owner was {self.uid}:{self.gid}, is {other.uid}:{other.gid}"
        return "" if self.same(other) else "extended attributes differ"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Files:
    """Reads and changes paths below `roots`. `tag` marks the temporary files of one venv's lock."""

    def __init__(self, roots: list[str], tag: str, disk: Disk = DISK) -> None:
        self.disk = disk
        self.roots = [disk.realpath(r) for r in roots]
        self.prefix = f"{TEMP_PREFIX}{tag[:8]}-"
        self._count = 0

    # ---- looking -------------------------------------------------------------------------------------

    def confine(self, path: str) -> str:
        """`path` itself, if it stays below a root also after its folders' symlinks. Raises FilesError."""
        if not path.startswith("/") or os.path.normpath(path) != path:
            raise FilesError(errno.EINVAL, "not a plain absolute path", path)
        parent = self.disk.realpath(os.path.dirname(path))
        if not any(parent == r or parent.startswith(r.rstrip("/") + "/") for r in self.roots):
            raise FilesError(errno.EXDEV, f"leads out of {' and '.join(self.roots)}", path)
        return path

    def look(self, path: str) -> Entry:
        """What is at `path` now. A final symlink is not followed."""
        info = self.disk.lstat(path)
        if info is None:
            return Entry(path, "absent")
        common: dict[str, Any] = {
            key: getattr(info, f"st_{key}") for key in ("uid", "gid", "nlink", "atime_ns", "mtime_ns")
        }
        common["mode"] = stat.S_IMODE(info.st_mode)
        if stat.S_ISLNK(info.st_mode):
            target = self.disk.readlink(path)
            return Entry(
                path, "symlink", sha256=sha256(b"symlink:" + os.fsencode(target)), link=target, **common
            )
        if stat.S_ISREG(info.st_mode):
            xattrs = {k: base64.b64encode(v).decode() for k, v in self.disk.xattrs(path).items()}
            digest = sha256(self.disk.read(path))
            return Entry(path, "file", sha256=digest, size=info.st_size, xattrs=xattrs, **common)
        kind = "dir" if stat.S_ISDIR(info.st_mode) else "other"
        return Entry(path, kind, sha256=kind, **common)

    def identity(self, path: str) -> str:
        """ "" for nothing, the sha256 of a file's bytes or of `symlink:TARGET`, else `dir` or `other`."""
        return self.look(path).sha256

    # ---- keeping and restoring -----------------------------------------------------------------------

    def keep(self, path: str, folder: str, name: str, *, link: bool = True) -> Entry:
        """Keep what is at `path` as `folder/name`: a hard link (the inode itself), or else a copy."""
        entry = self.look(self.confine(path))
        if entry.kind in ("dir", "other"):
            raise FilesError(errno.EISDIR, f"is a {entry.kind}, not a file", path)
        if entry.kind != "file":
            return entry
        kept = os.path.join(folder, name)
        if not (link and self._link(path, kept)):
            self.disk.create(kept, self.disk.read(path), self._attributes(entry))
        if sha256(self.disk.read(kept)) != entry.sha256:
            raise FilesError(errno.EBUSY, "changed while it was read", path)
        return Entry(**{**entry.__dict__, "stored": name})

    def restore(self, entry: Entry, folder: str) -> bool:
        """Bring `entry.path` back to what was recorded. Idempotent; false when there was nothing to do."""
        path = self.confine(entry.path)
        now = self.look(path)
        if now.kind in ("dir", "other"):
            raise FilesError(errno.EISDIR, f"is a {now.kind} now, was {entry.kind}", path)
        if now.same(entry) and (entry.kind != "file" or now.mtime_ns == entry.mtime_ns):
            return False
        if entry.kind == "absent":
            self.disk.unlink(path)
        elif entry.kind == "symlink":
            temp = self._temp(path)
            self.disk.symlink(entry.link, temp, entry.uid, entry.gid, entry.mtime_ns)
            self._move(temp, path)
        else:
            self._restore_file(entry, now, os.path.join(folder, entry.stored))
        self._settle(path)
        return True

    def _restore_file(self, entry: Entry, now: Entry, kept: str) -> None:
        data = self.disk.read(kept)
        if sha256(data) != entry.sha256:
            raise FilesError(errno.EIO, f"the kept copy of {entry.path} was changed", kept)
        temp = self._temp(entry.path)
        attributes = self._attributes(entry)
        if _same_stamp(now, entry):  # bytecode of the present file would look valid for the restored one
            attributes = Attributes(
                **{**attributes.__dict__, "mtime_ns": (entry.mtime_ns // 10**9 + 1) * 10**9}
            )
            self.disk.create(temp, data, attributes)
        elif not self._link(kept, temp):
            self.disk.create(temp, data, attributes)
        self._move(temp, entry.path)

    # ---- changing ------------------------------------------------------------------------------------

    def place(self, path: str, data: bytes, mode: int) -> None:
        """Install a file. It takes the owner and xattrs of the file it replaces, or the folder's owner.

        Its mtime differs from the replaced file's, so that no bytecode of the old source is valid for the new
        one.
        """
        now = self.look(self.confine(path))
        if now.kind in ("dir", "other"):
            raise FilesError(errno.EISDIR, f"is a {now.kind}, not a file", path)
        owner = now if now.kind == "file" else self.look(os.path.dirname(path))
        stamp = int(time.time())
        if now.kind == "file":
            stamp = max(stamp, now.mtime_ns // 10**9 + 1)
        xattrs = self._attributes(now).xattrs if now.kind == "file" else {}
        temp = self._temp(path)
        new = Attributes(mode, owner.uid, owner.gid, stamp * 10**9, stamp * 10**9, xattrs)
        self.disk.create(temp, data, new)
        self._move(temp, path)
        self._settle(path)

    def remove(self, path: str) -> None:
        """Remove a file or symlink (absent is fine), and its bytecode."""
        now = self.look(self.confine(path))
        if now.kind in ("dir", "other"):
            raise FilesError(errno.EISDIR, f"is a {now.kind}, not a file", path)
        if now.kind != "absent":
            self.disk.unlink(path)
        self._settle(path)

    def missing_folders(self, path: str) -> list[str]:
        """Folders that have to be made before `path` can be, outermost first."""
        missing = []
        folder = os.path.dirname(self.confine(path))
        while self.disk.lstat(folder) is None:
            missing.append(folder)
            folder = os.path.dirname(folder)
        return missing[::-1]

    def make_folder(self, path: str, mode: int = 0o755, uid: int = -1, gid: int = -1) -> None:
        """Make one folder (an existing one is fine), owned like the one around it unless told."""
        self.confine(path)
        parent = os.path.dirname(path)
        if self.disk.lstat(path) is None:
            around = self.look(parent)
            self.disk.mkdir(path, mode, uid if uid >= 0 else around.uid, gid if gid >= 0 else around.gid)
        self.disk.sync_folder(parent)

    def remove_folder(self, path: str) -> list[str]:
        """Remove a folder that holds only bytecode and our temporary files; else return what it holds."""
        self.confine(path)
        info = self.disk.lstat(path)
        if info is None or not stat.S_ISDIR(info.st_mode):
            return []
        self.sweep(path)
        bytecode.purge_orphans(path, self.disk)
        left = self.disk.listdir(path)
        if not left:
            self.disk.rmdir(path)
            self.disk.sync_folder(os.path.dirname(path))
        return left

    def is_empty_folder(self, path: str) -> bool:
        """Whether `path` is a folder that holds nothing at all."""
        return self.look(path).kind == "dir" and not self.disk.listdir(path)

    def sweep(self, folder: str) -> list[str]:
        """Remove temporary files that a crash left in `folder`. Only under the venv's lock."""
        swept = [n for n in self.disk.listdir(folder) if n.startswith(self.prefix)]
        for name in swept:
            self.disk.unlink(os.path.join(folder, name))
        if swept:
            self.disk.sync_folder(folder)
        return swept

    # ---- parts ---------------------------------------------------------------------------------------

    def _temp(self, path: str) -> str:
        self._count += 1
        return os.path.join(os.path.dirname(path), f"{self.prefix}{os.getpid()}-{self._count}")

    def _link(self, source: str, path: str) -> bool:
        """Hard link; false where the file system, or the kernel's protection, does not allow it."""
        try:
            self.disk.link(source, path)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP):
                return False
            raise
        return True

    def _move(self, temp: str, path: str) -> None:
        try:
            self.disk.rename(temp, path)
            if self.disk.lstat(temp) is not None:  # two links to one inode: rename did nothing
                self.disk.unlink(temp)
        except OSError:
            if self.disk.lstat(temp) is not None:
                self.disk.unlink(temp)
            raise

    def _settle(self, path: str) -> None:
        bytecode.purge(path, self.disk)
        self.disk.sync_folder(os.path.dirname(path))

    def _attributes(self, entry: Entry) -> Attributes:
        xattrs = {k: base64.b64decode(v) for k, v in entry.xattrs.items()}
        return Attributes(entry.mode, entry.uid, entry.gid, entry.atime_ns, entry.mtime_ns, xattrs)


def _same_stamp(now: Entry, entry: Entry) -> bool:
    """Would bytecode compiled from `now` pass for that of `entry`? (CPython compares seconds and size.)"""
    return (
        now.kind == "file"
        and now.sha256 != entry.sha256
        and now.size == entry.size
        and now.mtime_ns // 10**9 == entry.mtime_ns // 10**9
    )
