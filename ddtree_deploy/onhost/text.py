"""Output of the host made safe to show: control characters escaped, secrets masked."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escape(text: str) -> str:
    """One printable line: control characters (also of the C1 set, and bidirectional marks) as `\\xNN`."""
    return _CONTROL.sub(
        lambda m: repr(m.group())[1:-1] if ord(m.group()) > 255 else f"\\x{ord(m.group()):02x}", text
    )


def mask(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
