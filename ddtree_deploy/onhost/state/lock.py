"""One run at a time on a venv: `flock` held by the runner's process; the file that it holds says who.

The venv's own folders are held as well, by their inodes: whoever keeps his state somewhere else, or comes by
another path, meets that. Death or reboot frees all of it: no expiry, no clock. The descriptors may be handed
to a recovery, which shares the lock. What a free lock's file says is of the past: nothing has to be put away
after a death.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import held
from .held import LOCK
from .layout import sweep, time_text

# The owner's record has one size, so that a full disk cannot keep a holder from saying how far it is.
RECORD = 4096
# Others probe the lock for an instant (facts, followers); a real holder keeps it far longer than this.
PATIENCE_S = 2.0


class Held(Exception):
    """Somebody else holds the lock; `owner` is what they say of themselves ({}: nothing yet).

    folder: of the venv, where it is that which is held; `holder` finds out by whom.
    """

    def __init__(self, owner: dict[str, Any], folder: str = "") -> None:
        super().__init__("locked")
        self.owner = owner
        self.folder = folder


class FileLock:
    """An exclusive flock on one file, for the life of the process or until `release`."""

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW

    def __init__(self, path: Path, fd: int = -1) -> None:
        self.path = path
        self.fd = fd

    def acquire(self, patience: float = PATIENCE_S) -> bool:
        """False when somebody else holds it for longer than that, in seconds. Raises OSError."""
        if self.fd < 0:
            self.fd = os.open(self.path, self.flags | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= end:
                    self.release()
                    return False
                time.sleep(0.02)

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class FolderLock(FileLock):
    """The same on a folder. Raises OSError where the file system has no such locks."""

    flags = os.O_RDONLY | os.O_DIRECTORY


class VenvLock(FileLock):
    """The lock in the state folder, and the folders of the venv itself.

    unknown: why a folder could not be held (some network file systems cannot lock one). Then only runs with
    the same state folder are kept out.
    """

    def __init__(self, path: Path, fd: int = -1) -> None:
        super().__init__(path, fd)
        self.folders: list[FolderLock] = []
        self.unknown = ""

    def hold(self, folder: str) -> bool:
        """False when somebody else holds it."""
        lock = FolderLock(Path(folder))
        try:
            free = lock.acquire()
        except OSError as error:
            lock.release()
            self.unknown = f"{folder} cannot be locked ({error.strerror})"
            return True
        if free:
            self.folders.append(lock)
        return free

    def release(self) -> None:
        while self.folders:  # ours last: while the venv is held, we say who we are
            self.folders.pop().release()
        super().release()


class SiteLock:
    """The lock of one venv. `owner` = {run, who, action, pid, since, step}."""

    def __init__(self, site_dir: Path, fd: int = -1) -> None:
        self.site_dir = site_dir
        self._lock = VenvLock(site_dir / LOCK, fd)
        self.owner: dict[str, Any] = {}

    @property
    def fd(self) -> int:
        return self._lock.fd

    @property
    def folder_fds(self) -> list[int]:
        """For a recovery to inherit beside `fd`: the venv is held as long as it lives."""
        return [lock.fd for lock in self._lock.folders]

    @property
    def unknown(self) -> str:
        """Why other state folders are not seen; empty where they are."""
        return self._lock.unknown

    def acquire(self, run: str, who: str, action: str, folders: Iterable[str] = ()) -> None:
        """Take it, and the `folders` of the venv. Raises Held."""
        if not self._lock.acquire():
            raise Held(read_owner(self.site_dir))
        for folder in folders:
            if not self._lock.hold(folder):
                self._lock.release()
                raise Held({}, folder)
        sweep(self.site_dir)
        self.owner = {
            "run": run,
            "who": who,
            "action": action,
            "pid": os.getpid(),
            "since": time_text(),
            "step": "lock",
        }
        write_owner(self.fd, self.owner)

    @classmethod
    def inherited(cls, site_dir: Path, fd: int) -> SiteLock:
        """The lock that our parent holds, for a recovery; the owner stays who it is."""
        lock = cls(site_dir, fd)
        lock.owner = read_owner(site_dir)
        return lock

    def at_step(self, step: str) -> None:
        """Say how far the run is."""
        self._say(step=step)

    def starts(self, wanted: bool) -> None:
        """Say that the service is to start, or to be down: the boot guard lets pass what we start."""
        self._say(starts=wanted)

    def _say(self, **values: Any) -> None:
        if self.owner:
            self.owner.update(values)
            with contextlib.suppress(OSError):  # a disk that fails is no reason to stop an undo
                write_owner(self.fd, self.owner)

    def release(self) -> None:
        """Free it. Our record goes first: the next holder is not taken for us."""
        if self._lock.fd >= 0:
            with contextlib.suppress(OSError):
                write_owner(self.fd, {})
            self._lock.release()


def write_owner(fd: int, owner: dict[str, Any]) -> None:
    """Replace the record in the lock's file. Who reads meanwhile sees by the checksum that it is torn."""
    text = json.dumps(owner).encode()
    os.pwrite(fd, b"%08x %s" % (zlib.crc32(text), text.ljust(RECORD - 9)), 0)


def read_owner(site_dir: Path) -> dict[str, Any]:
    """Who holds the lock, if it is held; {} when they have not said."""
    owner = json.loads(held.record(site_dir) or b"{}")
    return owner if isinstance(owner, dict) else {}
