"""Log files of servers: a fresh one for every start, and their last lines."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_KEEP = 5
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def new(folder: Path) -> Path:
    """The path of a log for one start; old ones but the newest few are deleted."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(folder.glob("server-*.log"))[: -_KEEP + 1]:
        old.unlink(missing_ok=True)
    return folder / f"server-{time.time_ns()}.log"


def line(text: str, limit: int = 300) -> str:
    """A line for people: no colours, cut (SGLang's dump of its arguments is one of 10,000 characters)."""
    text = _COLOUR.sub("", text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def tail(path: Path, lines: int, size: int = 65536) -> list[str]:
    """The last lines of a log; of a line rewritten with carriage returns (a progress bar) the last state."""
    try:
        with path.open("rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - size))
            text = f.read().decode(errors="replace")
    except OSError:
        return []
    rows = ([part for part in row.split("\r") if part.strip()] for row in text.split("\n"))
    return [parts[-1].rstrip() for parts in rows if parts][-lines:]
