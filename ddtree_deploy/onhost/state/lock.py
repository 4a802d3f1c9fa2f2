"""One run at a time on a venv: `flock` held by the runner's process; the file that it holds says who.

Death or reboot frees the lock: no expiry, no clock. The descriptor may be handed to a recovery, which shares
the lock. What a free lock's file says is of the past: nothing has to be put away after a death.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import zlib
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
    """Somebody else holds the lock; `owner` is what they say of themselves ({}: nothing yet)."""

    def __init__(self, owner: dict[str, Any]) -> None:
        super().__init__("locked")
        self.owner = owner


class FileLock:
    """An exclusive flock on one file, for the life of the process or until `release`."""

    def __init__(self, path: Path, fd: int = -1) -> None:
        self.path = path
        self.fd = fd

    def acquire(self, patience: float = PATIENCE_S) -> bool:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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


class SiteLock:
    """The lock of one venv. `owner` = {run, who, action, pid, since, step}."""

    def __init__(self, site_dir: Path, fd: int = -1) -> None:
        self.site_dir = site_dir
        self._lock = FileLock(site_dir / LOCK, fd)
        self.owner: dict[str, Any] = {}

    @property
    def fd(self) -> int:
        return self._lock.fd

    def acquire(self, run: str, who: str, action: str) -> None:
        """Take it, or raise Held."""
        if not self._lock.acquire():
            raise Held(read_owner(self.site_dir))
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
