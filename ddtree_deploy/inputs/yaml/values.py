"""Small value types of the YAML files: durations (`10s`, `1h30m`), sizes (`1GiB`, `500MB`), names."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+\Z", re.ASCII)
_LONGEST = 366 * 86400.0  # what waits and clocks take; nobody means more
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]i?)?B\Z", re.ASCII)
_LARGEST = 1e18
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?\Z")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_duration(value: Any) -> float:
    """Seconds of `250ms`, `10s`, `5m`, `1h`, `1h30m`. Raises ValueError saying what is accepted."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a duration such as 10s, 5m or 1h")
    if not isinstance(value, str) or re.fullmatch(r"\d+(\.\d+)?", value):
        raise ValueError(f"a duration needs a unit: {value}s, {value}m or {value}h")
    if not _DURATION.match(value):
        raise ValueError(f"{value!r} is not a duration such as 250ms, 10s, 5m, 1h or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    if seconds > _LONGEST:
        raise ValueError(f"{value!r} is longer than a year")
    return seconds


def parse_positive(value: Any) -> float:
    """As `parse_duration`, but more than zero."""
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError(f"{value!r} must be more than zero")
    return seconds


def parse_size(value: Any) -> int:
    """Bytes of `500MB` (decimal), `1GiB` (binary), `0B`. Raises ValueError saying what is accepted."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"a size needs a unit: {value}B, {value}MiB or {value}GiB")
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        shown = repr(value) if isinstance(value, str) else "this"
        raise ValueError(f"{shown} is not a size such as 500MB, 64MiB or 1GiB")
    number, unit = match.groups()
    count = float(number)
    if unit:
        count *= (1024 if unit.endswith("i") else 1000) ** _POWERS[unit[0]]
    if count > _LARGEST:
        raise ValueError(f"{value!r} is larger than any disk")
    return int(count)


def parse_name(value: str) -> str:
    """The name of a host, a payload, a step. Raises ValueError saying what is accepted."""
    if not _NAME.match(value):
        raise ValueError(f"{value!r} is not a name: letters, digits, `.`, `_`, `-`")
    return value


def parse_user(value: str) -> str:
    """The name of a user on the host. Raises ValueError."""
    if not _USER.match(value):
        raise ValueError(f"{value!r} is not a user name")
    return value


def format_duration(seconds: float) -> str:
    """`250ms`, `90s` as `1m30s`, `1h`: what `parse_duration` reads back."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    hours, rest = divmod(seconds, 3600)
    minutes, secs = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "m"), (secs, "s")]
    return "".join(f"{n:g}{unit}" for n, unit in parts if n) or "0s"
