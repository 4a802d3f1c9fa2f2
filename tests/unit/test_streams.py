"""Standard streams that end nothing: what a program with them says, and that it goes on to its own end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.text import safe

pytestmark = pytest.mark.starts

PROGRAM = """
import sys
from ddtree_deploy import streams
streams.harden()
socket = open("/dev/null", "rb")
for _ in range(int(sys.argv[2])):
    print(sys.argv[1], flush=True)
print(sys.argv[1], file=sys.stderr)
answer = sys.stdin.readline()
why = streams.lost()
open("told", "w").write(ascii((why, answer, min(socket.fileno(), 3))))
sys.exit(7)
"""


def told(folder: Path, text: str, *, count: int = 1, wrap: str = "", **how: Any) -> tuple[Any, ...]:
    """(why output was lost, what was read, the lowest descriptor that was given out, at most 3)."""
    argv: list[Any] = [sys.executable, "-c", PROGRAM, text, str(count)]
    if wrap:
        argv = ["/bin/sh", "-c", f'exec "$0" "$@" {wrap}', *argv]
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **given.pop("env", {})}
    done = subprocess.run(argv, **given, env=env, cwd=folder, timeout=60, check=False)
    assert done.returncode == 7, done
    made = eval((folder / "told").read_text())  # by ascii() above
    return (*made, done.stdout, done.stderr)


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"PYTHONIOENCODING": "ascii"}, b"it\\u2019s \\xf6\n"),
        ({"PYTHONIOENCODING": "ascii:strict"}, b"it\\u2019s \\xf6\n"),
        ({"PYTHONIOENCODING": "latin-1"}, b"it\\u2019s \xf6\n"),
        ({"PYTHONIOENCODING": "cp1252"}, b"it\x92s \xf6\n"),
        ({"PYTHONIOENCODING": "utf-8"}, "it\u2019s ö\n".encode()),
    ],
)
def test_case_35_what_an_encoding_has_not_is_escaped(
    tmp_path: Path, env: dict[str, str], line: bytes
) -> None:
    *_, out, err = told(tmp_path, "it\u2019s ö", env=env)
    assert (out, err) == (line, line)


def test_case_35_bytes_that_are_no_text_are_escaped_in_any_locale(tmp_path: Path) -> None:
    for env in (C_LOCALE, {"PYTHONUTF8": "1"}):
        *_, out, err = told(tmp_path, os.fsdecode(b"odd\xff"), env=env)
        assert out == err == b"odd\\udcff\n"
        assert safe(os.fsdecode(b"odd\xff")) == "odd\\udcff"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_descriptor_is_given_to_nobody_else(tmp_path: Path, closed: str) -> None:
    why, answer, lowest, *_ = told(tmp_path, "x", wrap=closed)
    assert (why, answer, lowest) == ("", "", 3)


@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_a_full_disk_under_the_output_is_known_at_the_end(tmp_path: Path, full: str) -> None:
    with Path("/dev/full").open("wb") as disk:
        why, *_ = told(tmp_path, "x" * 100_000, count=3, **{full: disk})
    assert why == "No space left on device"


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
def test_a_reader_that_has_gone_is_no_failure(tmp_path: Path, gone: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        why, *_ = told(tmp_path, "x" * 100_000, count=3, **{gone: writer})
    finally:
        os.close(writer)
    assert why == ""


def test_a_pipe_that_others_made_one_that_does_not_wait_gets_all(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    read: list[bytes] = []

    def slowly() -> None:
        with os.fdopen(reader, "rb") as pipe:
            read.append(pipe.read())

    thread = threading.Thread(target=slowly)
    thread.start()
    why, *_ = told(tmp_path, "x" * 1000, count=size // 200, stdout=writer)
    os.close(writer)
    thread.join(60)
    assert why == "" and read[0] == (b"x" * 1000 + b"\n") * (size // 200)


def test_an_answer_that_is_no_text_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "typed").write_bytes(b"\xff\xfey\n")
    with (tmp_path / "typed").open("rb") as typed:
        _, answer, *_ = told(tmp_path, "x", stdin=typed, env={"PYTHONUTF8": "1"})
    assert answer == "��y\n"
