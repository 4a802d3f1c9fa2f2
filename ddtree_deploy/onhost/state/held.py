"""Whether a lock is held, and by whom: what anybody may see of it.

Imports next to nothing: the service waits for its boot guard, which nearly always looks no further.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib

LOCK = "lock"
# As JSON writes it. Inside a text of the record its quotes would be escaped.
_STARTS = b'"starts": true'


def is_held(path: str | os.PathLike[str]) -> bool:
    """Does a living process hold the flock on `path`? Looks without making the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without such locks
        return False
    else:
        return False
    finally:
        os.close(fd)


def record(site_dir: str | os.PathLike[str]) -> bytes:
    """What the lock's owner says of itself, as JSON (see `lock`); empty when it has not said."""
    for _ in range(5):
        try:
            with open(os.path.join(site_dir, LOCK), "rb") as f:
                data = f.read()
        except OSError:
            return b""
        text = data[9:].rstrip()
        if data[:8] == b"%08x" % zlib.crc32(text):
            return text
        if not text:
            return b""
        time.sleep(0.005)  # it is being written
    return b""


def starts_the_service(site_dir: str | os.PathLike[str]) -> bool:
    """A living run holds the venv, and says that the service is to start."""
    return is_held(os.path.join(site_dir, LOCK)) and _STARTS in record(site_dir)
