"""Reads files of the payload folder, and only those: no links, no devices, nothing from outside."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.payload_schema import check_relative
from ddtree_deploy.text import safe, size

MAX_FILE = 256 * 1024 * 1024
MAX_TOTAL = 512 * 1024 * 1024
MAX_FILES = 10_000
_NEVER = ("__pycache__",)  # and dotfiles, *.pyc


class Content(NamedTuple):
    """Of one file."""

    data: bytes
    executable: bool  # by its owner: the one bit of a mode that is installed


class Reader:
    """Reads below `root`; counts what it has read, so that a payload that is too large is refused early."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.total = 0

    def tree(self, rel: str) -> dict[str, Content]:
        """`{"": content}` for a file; for a folder, the content of each file by its path below it.

        `__pycache__`, `*.pyc` and dotfiles are left out. Raises InputError naming the offending path.
        """
        path = self._checked(rel)
        if not path.is_dir():
            return {"": self._read(path)}
        found: dict[str, Content] = {}
        pending = [path]
        while pending:
            folder = pending.pop()
            for entry in sorted(os.scandir(folder), key=lambda e: e.name):
                self._check_name(Path(entry.path))
                if entry.name in _NEVER or entry.name.startswith(".") or entry.name.endswith(".pyc"):
                    continue
                here = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(here)
                    continue
                found[here.relative_to(path).as_posix()] = self._read(here)
                if len(found) > MAX_FILES:
                    raise InputError(f"more than {MAX_FILES} files", file=path)
        if not found:
            raise InputError("the folder has no files to install", file=path)
        return found

    def file(self, rel: str) -> bytes:
        """The bytes of one regular file."""
        return self.content(rel).data

    def content(self, rel: str) -> Content:
        """One regular file."""
        path = self._checked(rel)
        if path.is_dir():
            raise InputError("expected a file, this is a folder", file=path)
        return self._read(path)

    def _checked(self, rel: str) -> Path:
        """The path, every component of it a real folder or file of the payload."""
        path = self.root
        for part in rel.split("/"):
            path = path / part
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                raise InputError("does not exist", file=self.root / rel) from None
            except OSError as exc:
                raise InputError(f"cannot be read: {exc.strerror}", file=path) from None
            if stat.S_ISLNK(mode):
                raise InputError("is a symbolic link; a payload holds files only", file=path)
        return path

    def _check_name(self, path: Path) -> None:
        try:
            path.name.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(path.name).decode("utf-8", "backslashreplace")
            raise InputError("the name is not UTF-8", file=safe(path.with_name(shown))) from None
        try:
            if not path.name.startswith("~"):
                check_relative(path.name)
        except ValueError as problem:
            raise InputError(str(problem), file=safe(path)) from None

    def _read(self, path: Path) -> Content:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            what = "is a symbolic link; a payload holds files only" if path.is_symlink() else ""
            what = what or ("is a socket or device" if _special(path) else f"cannot be read: {exc.strerror}")
            raise InputError(what, file=path) from None
        with os.fdopen(fd, "rb") as f:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise InputError("is a socket or device; a payload holds files only", file=path)
            if info.st_mode & (stat.S_ISUID | stat.S_ISGID):
                raise InputError("is setuid or setgid; no such file is installed", file=path)
            if info.st_size > MAX_FILE:
                raise InputError(f"is too large: {size(info.st_size)}, at most {size(MAX_FILE)}", file=path)
            data = f.read()
        self.total += len(data)
        if self.total > MAX_TOTAL:
            raise InputError(f"the payload is larger than {size(MAX_TOTAL)}", file=path)
        return Content(data, bool(info.st_mode & stat.S_IXUSR))


def _special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
