"""Output of the host made safe to show: control characters escaped, secrets masked."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SECRET_FLAG = re.compile(r"^--?[\w-]*(api[-_]?key|token|password|secret)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"^(--?[\w-]*(?:api[-_]?key|token|password|secret))=.*$", re.IGNORECASE | re.DOTALL
)
# Flags that end like a secret's and hold none.
_HARMLESS = ("-tokens", "num-token", "max-token")


def escape(text: str) -> str:
    """One printable line: control characters (also of the C1 set, and bidirectional marks) as `\\xNN`."""
    return _CONTROL.sub(
        lambda m: repr(m.group())[1:-1] if ord(m.group()) > 255 else f"\\x{ord(m.group()):02x}", text
    )


def mask_argv(argv: list[str]) -> list[str]:
    """A command line with the values of key, token, password and secret flags replaced."""
    masked: list[str] = []
    hide = False
    for word in argv:
        if hide and not word.startswith("--"):
            masked.append("***")
        else:
            masked.append(_SECRET_VALUE.sub(r"\1=***", word))
        hide = bool(_SECRET_FLAG.match(word)) and not any(h in word for h in _HARMLESS)
    return masked


def mask(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
