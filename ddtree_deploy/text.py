"""Text from a host, made safe to print."""

from __future__ import annotations

import math

from ddtree_deploy.onhost.wire.masking import escape


def safe(text: object, limit: int = 2000) -> str:
    """One line without control characters (see `escape`), tabs as blanks."""
    line = str(text)
    return escape(line[:limit]).replace("\t", " ") + ("..." if len(line) > limit else "")


def shortened(line: str, limit: int = 2000, tail: int = 800) -> str:
    """`line` with its middle left out where it is longer: an error ends with the next command to type."""
    return line if len(line) <= limit else f"{line[: limit - tail]} ... {line[-tail:]}"


def size(count: float) -> str:
    """Bytes for people: 512 B, 61.2 kB, 48.0 MB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000 or unit == "GB":
            return f"{count:.1f} {unit}"
    raise AssertionError


def span(seconds: float) -> str:
    """A time span for people: 0.4 s, 75 s, 12 min 05 s; `?` for what is none."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
