"""Append-only JSON lines, the single source of truth about a run. Fsynced around every mutation."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from ..venv.disk import sync
from ..wire.masking import mask_text


class Journal:
    """One writer (the runner, or a recovery of the same run); any number of readers by offset.

    `secrets` never reach the file. With `tolerant` (while undoing) a full disk loses lines, not the undo.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secrets: list[str] = []
        self.tolerant = False
        self._lock = threading.Lock()
        self.events, whole = read(path)  # of this writer too, as they are in the file
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if path.stat().st_size != whole:  # the torn last line of a crash: nobody acted on it
            os.ftruncate(self._fd, whole)
            os.fsync(self._fd)
        if not self.events:
            sync(path.parent)

    def write(self, event: str, *, sync: bool = False, **data: Any) -> None:
        """Append one event; with `sync` it is on disk when this returns."""
        with self._lock:
            n = self.events[-1]["n"] + 1 if self.events else 1
            entry = {"n": n, "t": round(time.time(), 3), "e": event, **data}
            hidden = [json.dumps(secret)[1:-1] for secret in self.secrets]  # as they are in the line
            line = mask_text(json.dumps(entry, separators=(",", ":")), hidden)
            try:
                self._append(line.encode() + b"\n")
                self.events.append(json.loads(line))
                if sync:
                    os.fsync(self._fd)
            except OSError:
                if not self.tolerant:
                    raise

    def _append(self, line: bytes) -> None:
        """All of the line or nothing: a disk that fills up must not leave half a line in the middle."""
        start = os.fstat(self._fd).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, start)
            raise

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


class Tail:
    """Whole lines of a journal from a byte offset."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self.offset = offset

    def read(self) -> bytes:
        """What is new, up to the last newline."""
        try:
            with self._path.open("rb") as f:
                f.seek(self.offset)
                data = f.read(1 << 20)
        except FileNotFoundError:
            return b""
        data = data[: data.rfind(b"\n") + 1]
        self.offset += len(data)
        return data
