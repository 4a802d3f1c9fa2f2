"""Patches are applied to the letter, or refused with the hunk named."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_deploy.onhost.staging.patch import PatchError, apply

pytestmark = pytest.mark.unit

BASE = b"".join(b"line %d\n" % n for n in range(1, 21))


def diff(old: bytes, new: bytes, context: int = 3) -> bytes:
    made = difflib.diff_bytes(
        difflib.unified_diff, _lines(old), _lines(new), b"a/x.py", b"b/x.py", n=context, lineterm=b"\n"
    )
    out = b""
    for line in made:
        out += line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
    return out


def _lines(data: bytes) -> list[bytes]:
    return [part + b"\n" for part in data.split(b"\n")[:-1]] + [p for p in [data.split(b"\n")[-1]] if p]


line = st.sampled_from(
    [b"a", b"b", b"", b"  x = 1", b"-- y", b"++ z", b"@@ -1 +1 @@", b"\\ No", b"c\r", b"\x0c", b"\xff"]
)
text = st.builds(
    lambda lines, end: b"\n".join(lines) + (b"\n" if end and lines else b""), st.lists(line), st.booleans()
)


@given(text, text, st.integers(0, 4))
def test_applying_the_diff_of_two_texts_gives_the_second(old: bytes, new: bytes, context: int) -> None:
    made = diff(old, new, context)
    if made:
        assert apply(old, made) == new


def backwards(made: bytes) -> bytes:
    """The diff that takes the result back."""
    out = []
    for line in made.split(b"\n"):
        if line.startswith((b"--- a/", b"+++ b/")):
            out.append(line)
        elif line.startswith(b"@@"):
            _, old, new, _ = line.split(b" ")
            out.append(b"@@ -%s +%s @@" % (new[1:], old[1:]))
        else:
            out.append({b"+": b"-", b"-": b"+"}.get(line[:1], line[:1]) + line[1:])
    return b"\n".join(out)


@given(text, text, text)
def test_a_diff_changes_exactly_what_it_says_or_is_refused(old: bytes, new: bytes, other: bytes) -> None:
    """On another base it may fit too (the same lines at the same places); then it can be taken back."""
    made = diff(old, new, 1)
    if not made:
        return
    try:
        result = apply(other, made)
    except PatchError:
        return
    assert apply(result, backwards(made)) == other


def test_context_that_moved_by_a_line_is_refused() -> None:
    made = diff(BASE, BASE.replace(b"line 10\n", b"LINE 10\n"))
    with pytest.raises(PatchError, match=r"hunk 1: line 7 should be 'line 7', it is 'line 6'"):
        apply(b"new first line\n" + BASE, made)


def test_the_second_hunk_is_named() -> None:
    made = diff(BASE, BASE.replace(b"line 2\n", b"two\n").replace(b"line 18\n", b"eighteen\n"))
    with pytest.raises(PatchError, match=r"hunk 2: line 18 should be 'line 18', it is 'changed'"):
        apply(BASE.replace(b"line 18\n", b"changed\n"), made)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (b"", "of one file, it is of 0"),
        (b"--- a\n+++ b\n", "of one file, it is of 0"),
        (b"--- a\n+++ b\n@@ -1,2 +1,2 @@\n line 1\n", "ends before"),
        (b"--- a\n+++ b\n@@ -1 +1 @@\n-line 1\n+x\nrubbish\n", "no hunk header"),
        (b"--- a\n+++ b\n@@ -1 +1 @@\n*line 1\n", "unexpected"),
        (b"--- a\n+++ b\n@@ -9,1 +1,1 @@\n-line 9\n+x\n", "8 lines before it, it says 1"),
        (b"--- a\n+++ b\n@@ -99 +99 @@\n-line 99\n+x\n", "beyond the end"),
        (b"--- a\n+++ b\n@@ -1 +1 @@\n-line 1\n+x\n--- c\n+++ d\n@@ -1 +1 @@\n-line 1\n+x\n", "it is of 2"),
        (b"rename from a\nrename to b\n--- a\n+++ b\n@@ -1 +1 @@\n-line 1\n+x\n", "only changes of content"),
    ],
)
def test_what_is_not_exact_is_refused(broken: bytes, why: str) -> None:
    with pytest.raises(PatchError, match=why):
        apply(BASE, broken)


def test_git_headers_are_skipped() -> None:
    made = b"diff --git a/x.py b/x.py\nindex 123..456 100644\n" + diff(
        BASE, BASE.replace(b"line 3", b"three")
    )
    assert apply(BASE, made) == BASE.replace(b"line 3", b"three")
