"""Unified diffs applied to the letter: every context line exact, every offset exact, nothing skipped."""

from __future__ import annotations

import re

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?$")
_NO_NEWLINE = b"\\ No newline at end of file"


class PatchError(ValueError):
    """The diff is malformed, or does not fit the base; the message names the hunk and the line."""


def apply(base: bytes, diff: bytes) -> bytes:
    """The base with the diff applied. `diff` is of one file: `---`, `+++`, hunks; git's headers are skipped.

    Raises PatchError for anything that is not exact.
    """
    old = _split(base)
    lines = _split(diff)
    at = _header(lines)
    new: list[bytes] = []
    position = 0  # lines of the base that are dealt with
    number = 0
    while at < len(lines):
        number += 1
        match = _HUNK.match(lines[at].rstrip(b"\n"))
        if match is None:
            raise PatchError(f"line {at + 1} is no hunk header: {_show(lines[at])}")
        start, count, new_start, new_count = (
            int(match[1]),
            int(match[2]) if match[2] is not None else 1,
            int(match[3]),
            int(match[4]) if match[4] is not None else 1,
        )
        begin = start - 1 if count else start  # a hunk without old lines names the line before it
        if begin < position or begin > len(old):
            raise PatchError(f"hunk {number} starts at line {start}, which is {_outside(begin, position)}")
        new += old[position:begin]
        position = begin
        if len(new) != (new_start - 1 if new_count else new_start):
            raise PatchError(
                f"hunk {number}: the new file has {len(new)} lines before it, it says {new_start}"
            )
        at, taken, given = _hunk(lines, at + 1, number, (count, new_count), old[position:], position)
        position += taken
        new += given
    if number == 0:
        raise PatchError("there is no hunk in it")
    new += old[position:]
    if any(not line.endswith(b"\n") for line in new[:-1]):
        raise PatchError("a line without newline would not be the last one")
    return b"".join(new)


def _hunk(  # noqa: PLR0917
    lines: list[bytes], at: int, number: int, counts: tuple[int, int], old: list[bytes], position: int
) -> tuple[int, int, list[bytes]]:
    """A hunk's body from `at`: (line after it, old lines taken, new lines). `old` begins at `position`."""
    count, new_count = counts
    taken = 0
    given: list[bytes] = []
    while taken < count or len(given) < new_count:
        if at >= len(lines):
            raise PatchError(f"hunk {number} ends before its {count} old and {new_count} new lines")
        mark, text = lines[at][:1], lines[at][1:]
        if mark == b"\n":  # some tools strip the space of an empty context line
            mark, text = b" ", b"\n"
        if mark not in (b" ", b"-", b"+"):
            raise PatchError(f"hunk {number}, line {at + 1} of the diff: unexpected {_show(lines[at])}")
        if at + 1 < len(lines) and lines[at + 1].rstrip(b"\n") == _NO_NEWLINE:
            text = text[:-1]
            at += 1
        at += 1
        if mark != b"+":
            if taken >= len(old) or old[taken] != text:
                found = _show(old[taken]) if taken < len(old) else "the end of the file"
                raise PatchError(
                    f"hunk {number}: line {position + taken + 1} should be {_show(text)}, it is {found}"
                )
            taken += 1
        if mark != b"-":
            given.append(text)
    if taken != count or len(given) != new_count:
        raise PatchError(
            f"hunk {number} has {taken} old and {len(given)} new lines, it says {count} and {new_count}"
        )
    return at, taken, given


def _header(lines: list[bytes]) -> int:
    """The line after `---` and `+++`. Refuses renames, deletions, binary diffs and second files."""
    olds = [i for i, line in enumerate(lines) if line.startswith(b"--- ") and i + 1 < len(lines)]
    heads = [i for i in olds if lines[i + 1].startswith(b"+++ ") and _follows(lines, i + 2)]
    if len(heads) != 1:
        raise PatchError(f"it must be a unified diff of one file, it is of {len(heads)}")
    for line in lines[: heads[0]]:
        if line.startswith(
            (b"rename ", b"copy ", b"deleted file", b"new file", b"GIT binary", b"Binary files")
        ):
            raise PatchError(f"only changes of content are applied, not {_show(line)}")
    return heads[0] + 2


def _follows(lines: list[bytes], at: int) -> bool:
    return at < len(lines) and lines[at].startswith(b"@@ ")


def _split(data: bytes) -> list[bytes]:
    """Lines ended by \\n alone, as diff sees them."""
    parts = data.split(b"\n")
    lines = [p + b"\n" for p in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _outside(begin: int, position: int) -> str:
    return "inside the hunk before it" if begin < position else "beyond the end of the file"


def _show(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\n")
    return repr(text if len(text) <= 80 else text[:77] + "...")
