"""How systemd makes words and variables of text, when it starts a service. Pure.

Source: systemd.service(5) "Command lines", systemd.exec(5) "EnvironmentFile="; where they are silent, systemd
252 and 257 themselves (`tests/lab/test_unit_truth.py` compares with the processes that they start).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SPACE = " \t\n\r"
COMMENT_ENDS = 254  # from this version on a backslash at the end of a comment does not join the next line
STRICT_NAMES = 254  # before, the name of a variable could hold an `=`; 252 did, 257 does not
_KEY_END = re.compile(r"[=\n\r]|\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# `${NAME}`, and what is none: `${A:...` is left as it is, `${` without an end takes all the rest.
_BRACED = re.compile(r"\$(?:\$|\{([^}:]*)(\}|:|\Z))")


def environment_file(data: bytes, version: int) -> dict[str, str]:
    """The variables of an EnvironmentFile=. Raises ValueError for one that systemd drops as a whole."""
    if b"\0" in data:
        raise ValueError("it holds a zero byte")
    pairs = _pairs(data.decode(errors="surrogateescape"), version)
    try:
        "".join(key + value for key, value in pairs).encode()  # in a comment other bytes do no harm
    except UnicodeEncodeError:
        raise ValueError("a variable in it is not UTF-8") from None
    return {key: value for key, value in pairs if _NAME.fullmatch(key)}


def _pairs(text: str, version: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        if text[at] in SPACE:
            at += 1
        elif text[at] in "#;":
            at = _comment_end(text, at, version)
        else:
            end = _KEY_END.search(text, at + 1)
            assert end is not None
            key, at = text[at : end.start()].rstrip(SPACE), end.end()
            if end.group() == "=":
                value, at = _value(text, at)
                found.append((key, value))
    return found


def _comment_end(text: str, at: int, version: int) -> int:
    while at < len(text) and text[at] not in "\n\r":
        at += 2 if text[at] == "\\" and (version < COMMENT_ENDS or text[at + 1 : at + 2] not in "\n\r") else 1
    return at


def _value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at `at`, and where it ends. Quotes count before its first plain character."""
    out, kept, plain = "", 0, False  # kept: what is not trailing space
    while at < len(text) and text[at] not in "\n\r":
        char = text[at]
        at += 1
        if char == "\\":
            out += text[at : at + 1].strip("\n\r")
            at, kept, plain = at + 1, len(out), True
        elif not plain and char in "'\"":
            quoted, at = _quoted(text, at, char)
            out += quoted
            kept = len(out)
        elif plain or char not in SPACE:
            out, plain = out + char, True
            kept = kept if char in SPACE else len(out)
    return out[:kept], at


def _quoted(text: str, at: int, quote: str) -> tuple[str, int]:
    out = ""
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "\\":
            following = text[at + 1 : at + 2]
            out += following if following in '"\\`$' else "" if following == "\n" else "\\" + following
            at += 2
        else:
            out += text[at]
            at += 1
    return out, at + 1


def expand(argv: list[str], env: Mapping[str, str], version: int) -> list[str]:
    """What the process gets of the words of a command line; argv[0] too, never the path."""
    out: list[str] = []
    for word in argv:
        if word[:1] == "$" and word[1:2] not in ("{", "$"):  # all the rest of the word is the name
            out += _split(_variable(word[1:], env, version))
        else:
            out.append(_BRACED.sub(lambda m: _replaced(m, env, version), word))
    return out


def _replaced(match: re.Match[str], env: Mapping[str, str], version: int) -> str:
    if match[0] == "$$":
        return "$"
    return _variable(match[1], env, version) if match[2] == "}" else match[0]


def _variable(name: str, env: Mapping[str, str], version: int) -> str:
    key, equals, more = name.partition("=")
    if equals and version < STRICT_NAMES and env.get(key, "").startswith(more + "="):
        return env[key][len(more) + 1 :]
    return env.get(name, "")


def _split(value: str) -> list[str]:
    """Words of a variable: split at blanks, quotes anywhere, a backslash takes the next character."""
    words: list[str] = []
    inside, quote, escaped = False, "", False
    for char in value:
        if not inside and char in SPACE:
            continue
        if not inside:
            words.append("")
            inside = True
        if escaped:
            words[-1] += char
            escaped = False
        elif char == "\\":
            escaped = True
        elif quote and char == quote:
            quote = ""
        elif quote:
            words[-1] += char
        elif char in "'\"":
            quote = char
        elif char in SPACE:
            inside = False
        else:
            words[-1] += char
    return words
