"""Append-only JSON lines, the single source of truth about a run. Fsynced around every mutation."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class Journal:
    """One writer (the runner, or a recovery of the same run); any number of readers by offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        events, whole = read(path)
        self._n = events[-1]["n"] if events else 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if path.stat().st_size != whole:  # the torn last line of a crash: nobody acted on it
            os.ftruncate(self._fd, whole)

    def write(self, event: str, *, sync: bool = False, **data: Any) -> dict[str, Any]:
        """Append one event; with `sync` it is on disk when this returns."""
        with self._lock:
            self._n += 1
            entry = {"n": self._n, "t": round(time.time(), 3), "e": event, **data}
            os.write(self._fd, json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            if sync:
                os.fsync(self._fd)
            return entry

    def close(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All complete events, and the length in bytes of the complete part. A missing file has none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    whole = raw.rfind(b"\n") + 1
    return [json.loads(line) for line in raw[:whole].splitlines()], whole
