"""Environment files and variables in a command line, as systemd 252 and 257 were seen to take them."""

from __future__ import annotations

import pytest

from ddtree_deploy.onhost.service.systemd.expansion import environment_file, expand

ENV = {"A": "one two", "Q": "'a b' c", "E": "", "Z": "q=Z", "B": "back\\ slash", "O": "'open end"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1\nB = 2 \n", {"A": "1", "B": "2"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("export A=1\nB=2", {"B": "2"}),
        ("\ufeffA=1\nB=2\n", {"B": "2"}),
        ("# A=1\n; B=2\nC=3", {"C": "3"}),
        ("A=%n $B ${B}\n", {"A": "%n $B ${B}"}),
        ('A="a" b\n', {"A": "ab"}),
        ('A=x"y"\n', {"A": 'x"y"'}),
        ("A=\"x y\" \nB='z'\n", {"A": "x y", "B": "z"}),
        ('A="over\ntwo"\nB=1\n', {"A": "over\ntwo", "B": "1"}),
        ('A="\\" \\\\ \\$ \\` \\n"\n', {"A": '" \\ $ ` \\n'}),
        ("A=one\\\n two\n", {"A": "one two"}),
        ("A-b=1\n1A=1\nA=1\n", {"A": "1"}),
        ("J\nA=\n", {"A": ""}),
        ('A="half\nB=1\n', {"A": "half\nB=1\n"}),
    ],
)
def test_an_environment_file_is_read_as_systemd_reads_it(text: str, values: dict[str, str]) -> None:
    assert environment_file(text.encode(), 252) == values


def test_a_comment_that_ends_in_a_backslash_eats_the_next_line_in_older_versions() -> None:
    text = b"# c \\\nA=1\nB=2\n"
    assert environment_file(text, 252) == {"B": "2"}
    assert environment_file(text, 257) == {"A": "1", "B": "2"}


def test_bytes_that_are_no_utf8_lose_the_whole_file_but_not_in_a_comment() -> None:
    assert environment_file(b"# K\xf6ln\nA=1\n", 252) == {"A": "1"}
    for data in (b"A=1\nB=\xff\n", b"A=1\0\n"):
        with pytest.raises(ValueError, match=r"UTF-8|zero byte"):
            environment_file(data, 252)


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (["$A"], ["one", "two"]),
        (["${A}"], ["one two"]),
        (["x$A", "x${A}y"], ["x$A", "xone twoy"]),
        (["$E", "${E}", "$NONE", "${NONE}"], ["", ""]),
        (["$$A", "$$", "a$$b"], ["$A", "$", "a$b"]),
        (["$Q", "$B", "$O"], ["a b", "c", "back slash", "open end"]),
        (["$A-b", "${A:-x}", "${A"], ["${A:-x}", "${A"]),
        (["--port", "$A", "; x"], ["--port", "one", "two", "; x"]),
    ],
)
def test_variables_of_a_command_line(words: list[str], got: list[str]) -> None:
    assert expand(words, ENV, 257) == got


def test_older_versions_find_a_name_with_an_equals_sign() -> None:
    assert expand(["${Z=q}"], ENV, 252) == ["Z"]
    assert expand(["${Z=q}"], ENV, 257) == [""]
