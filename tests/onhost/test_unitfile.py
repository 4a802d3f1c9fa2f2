"""systemd's unit syntax, where a wrong reading would start another command."""

from __future__ import annotations

import pytest

from ddtree_deploy.onhost.service.systemd import unitfile


def test_only_a_line_in_brackets_begins_a_section() -> None:
    text = "[Service]\nExecStart=/bin/x [1]\n[Install\nRestart=always\n[Unit]\nExecStart=/bin/y\n"
    assert unitfile.settings(text) == [("ExecStart", "/bin/x [1]"), ("Restart", "always")]
    assert unitfile.exec_start([text]) == ("", ["/bin/x", "[1]"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r"a\x20b", ["a b"]),
        (r"a\x2", ["a\\x2"]),
        (r"\u00e4\U0001f600", ["ä😀"]),
        (r"\u00e", ["\\u00e"]),
        (r"\101\60", ["A\\60"]),
        (r"\s\t\q\;", [" \t\\q;"]),
        ("'a b'\"c d\"", ["a bc d"]),
        (r"'a\'b' c", ["a'b", "c"]),
    ],
)
def test_quotes_and_escapes_are_undone_as_systemd_does(line: str, words: list[str]) -> None:
    assert unitfile.split(line) == words
