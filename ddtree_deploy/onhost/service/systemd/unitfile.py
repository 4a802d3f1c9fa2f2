"""systemd's unit syntax, as far as a service's launch needs it. Pure.

A *unit word* is a word of ExecStart after quoting is undone but with `%` and `$` still as systemd reads them;
a *literal* is what the process gets. Source: systemd.syntax(7), systemd.service(5) "Command lines",
systemd.unit(5) "Specifiers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
# One escape as systemd knows it, or one character. Of an unknown escape the backslash stays.
_PIECE = re.compile(
    r"""\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|[abfnrtvs\\"';])|.""", re.DOTALL
)
# Signs before a command, and systemd's own words for them.
PREFIXES = {
    "-": "ignore-failure", ":": "no-env-expand", "+": "privileged", "!!": "ambient", "!": "no-setuid"
}  # fmt: skip
BEFORE = "# Before: "
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./${}\-]+")
_QUOTED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
_SPACE = " \t\n\r"  # systemd's own idea of white space; Unicode's others are part of a word


class UnitError(ValueError):
    """Text that this module will not touch; the message says what it is."""


def settings(text: str, section: str = "Service") -> list[tuple[str, str]]:
    """All `Key=value` of one section in order, continuation lines joined, comments dropped."""
    found: list[tuple[str, str]] = []
    current, pending = "", ""
    for raw in text.split("\n"):
        line = raw.strip(_SPACE)
        if line.startswith(("#", ";")):  # also between continued lines
            continue
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        line, pending = pending.strip(_SPACE), ""
        if line.startswith("[") and line.endswith("]"):
            current = line[1:-1]
        elif current == section and "=" in line:
            key, value = line.split("=", 1)
            found.append((key.strip(_SPACE), value.strip(_SPACE)))
    return found


def effective(texts: list[str], key: str) -> list[str]:
    """The values of a list setting over a unit and its drop-ins; an empty assignment clears those before."""
    values: list[str] = []
    for text in texts:
        for name, value in settings(text):
            if name == key:
                values = [*values, value] if value else []
    return values


def split(line: str) -> list[str]:
    """Unit words of a line: quotes and C escapes undone. Raises UnitError on an unclosed quote."""
    words: list[str] = []
    quote, inside = "", False  # the quote that is open; whether a word has begun
    for piece in _PIECE.findall(line):
        if not quote and piece in _SPACE:
            inside = False
            continue
        if not inside:
            words.append("")
            inside = True
        if piece == quote:
            quote = ""
        elif not quote and piece in ("'", '"'):
            quote = piece
        else:
            words[-1] += piece if len(piece) == 1 else _meant(piece)
    if quote:
        raise UnitError(f"a quote is not closed in: {line}")
    return words


def _meant(escape: str) -> str:
    lead, digits = escape[1], escape[2:]
    if digits:
        return chr(int(digits, 16) if lead in "xuU" else int(lead + digits, 8))
    return _ESCAPES.get(lead, lead)


def quote(word: str) -> str:
    """One unit word as written in a unit file: `split(quote(w)) == [w]`."""
    if _PLAIN.fullmatch(word):
        return word
    out = (_QUOTED.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else c) for c in word)
    return f'"{"".join(out)}"'


def to_unit(literal: str) -> str:
    """A literal as a unit word: systemd expands neither specifiers nor variables in it."""
    return literal.replace("%", "%%").replace("$", "$$")


def exec_start(texts: list[str]) -> tuple[str, list[str]]:
    """(prefix characters, unit words) of the one effective ExecStart. Raises UnitError."""
    lines = effective(texts, "ExecStart")
    if len(lines) != 1:
        raise UnitError(f"it has {len(lines)} ExecStart= lines, and this tool edits exactly one")
    match = re.match(r"[@\-:+!|]*", lines[0])
    prefix = match.group() if match else ""
    if "@" in prefix:
        raise UnitError("its ExecStart= passes an argv[0] of its own (prefix @)")
    words = split(lines[0][len(prefix) :])
    if not words:
        raise UnitError("its ExecStart= is empty")
    return prefix, words


def specified(word: str, specifiers: Mapping[str, str]) -> str:
    """A word with its specifiers expanded, as far as they are known here."""
    return re.sub(r"%(.)", lambda m: specifiers.get(m[1], m[0]) if m[1] != "%" else "%", word)


def environment(texts: list[str]) -> list[str]:
    """`Environment=` of a unit and its drop-ins as NAME=VALUE, specifiers not expanded."""
    return [word for line in effective(texts, "Environment") for word in split(line) if "=" in word]


def exec_line(path: str, argv: list[str], flags: list[str]) -> str:
    """The value of an ExecStart= that systemd reads as just this: words with `$`, without specifiers."""
    prefix = "".join(sign for sign, flag in PREFIXES.items() if flag in flags)
    words = argv if argv[0] == path else [path, *argv]
    return prefix + ("" if argv[0] == path else "@") + " ".join(quote(w.replace("%", "%%")) for w in words)


def drop_in(command: str, env: Mapping[str, str], run: str, before: str) -> str:
    """The drop-in that replaces the command line and adds variables (literals). before: for `replaced`."""
    lines = [
        f"# Written by ddtree-deploy, run {run}. `ddtree-deploy rollback` removes or restores it.",
        f"{BEFORE}{before}",
        "[Service]",
        "ExecStart=",
        f"ExecStart={command}",
    ]
    # Environment= expands specifiers but not variables.
    lines += [f"Environment={quote(name + '=' + value.replace('%', '%%'))}" for name, value in env.items()]
    return "\n".join(lines) + "\n"


def replaced(text: str) -> str:
    """What `drop_in` was told of the unit before; empty where an older version wrote it."""
    found = (line.removeprefix(BEFORE) for line in text.splitlines() if line.startswith(BEFORE))
    return next(found, "")


def guard(argv: list[str], own: list[str], run: str) -> str:
    """The drop-in that puts `argv` (literals), with full privileges, before the unit's own ExecStartPre."""
    words = " ".join(quote(to_unit(word)) for word in argv)
    lines = [
        f"# Written by ddtree-deploy, run {run}; gone when the run is over.",
        "[Service]",
        "ExecStartPre=",
        f"ExecStartPre=+{words}",
        *(f"ExecStartPre={line}" for line in own),
    ]
    return "\n".join(lines) + "\n"
