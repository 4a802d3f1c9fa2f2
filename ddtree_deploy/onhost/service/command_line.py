"""The server's command line as data: edits by flag, masking of secrets, recognition of wrappers. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ..wire.masking import is_flag, values_end
from ..wire.protocol import Launch

SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox"}
_CONTAINERS = {"docker", "podman", "nerdctl", "apptainer", "singularity", "kubectl", "ctr", "crictl"}
# Programs that end in exec() of the rest of their command line.
PREFIXES = {"env", "numactl", "taskset", "nice", "ionice", "chrt", "setsid", "nohup", "stdbuf", "exec"}


def _matches(word: str, flag: str) -> bool:
    return word == f"--{flag}" or word.startswith(f"--{flag}=")


def values_of(argv: list[str], flag: str) -> list[str] | None:
    """The values of the last `--flag` (argparse's rule); None when it is not there."""
    found: list[str] | None = None
    for i, word in enumerate(argv):
        if word.startswith(f"--{flag}="):
            found = [word.split("=", 1)[1]]
        elif word == f"--{flag}":
            found = argv[i + 1 : values_end(argv, i)]
    return found


def _words(flag: str, value: str | None, equals: bool) -> list[str]:
    if value is None:
        return [f"--{flag}"]
    # argparse takes a separate value that begins with a dash for a flag.
    if equals or value.startswith("-"):
        return [f"--{flag}={value}"]
    return [f"--{flag}", value]


def edit(argv: list[str], launch: Launch, is_end: Callable[[str], bool] = is_flag) -> list[str]:
    """`argv` after the edits: a present flag is replaced where it stands, a new one is appended.

    With `launch.command` that is the base instead of `argv`. Further occurrences of a flag that is set are
    removed, since the last one would win. is_end: whether a word is no value of the flag before it.
    """
    words = list(launch.command if launch.command is not None else argv)
    for flag in launch.unset:
        words, _ = _cut(words, flag, is_end)
    for flag, value in launch.set.items():
        words, at = _cut(words, flag, is_end)
        if at is None:
            words += _words(flag, value, False)
        else:
            index, equals = at
            words[index:index] = _words(flag, value, equals)
    return words


def _cut(
    words: list[str], flag: str, is_end: Callable[[str], bool]
) -> tuple[list[str], tuple[int, bool] | None]:
    """Without any `--flag`; where the first one stood, and whether it was written with `=`."""
    kept: list[str] = []
    first: tuple[int, bool] | None = None
    i = 0
    while i < len(words):
        if _matches(words[i], flag):
            first = first or (len(kept), "=" in words[i])
            i = values_end(words, i, is_end)
        else:
            kept.append(words[i])
            i += 1
    return kept, first


def wrapper(argv: list[str]) -> str:
    """Why flags cannot be edited in this command line; empty when the server is run directly.

    A shell's `-c` text and a script that starts the server somewhere inside are nothing that flags can be
    added to with any certainty.
    """
    rest = strip_prefixes(argv)
    if not rest:
        return "the command line is empty"
    name = PurePosixPath(rest[0]).name
    if name in SHELLS:
        return f"it runs through a shell ({name})"
    if name in _CONTAINERS:
        return f"it runs a container ({name})"
    interpreter = shebang(rest[0])
    if interpreter and PurePosixPath(interpreter).name in SHELLS:
        return f"{rest[0]} is a shell script"
    return ""


def strip_prefixes(argv: list[str]) -> list[str]:
    """Without `env K=V`, `numactl --x`, `nice -n 5` and the like in front."""
    rest = list(argv)
    while rest and PurePosixPath(rest[0]).name in PREFIXES:
        rest = strip_prefix(rest)
    return rest


def strip_prefix(argv: list[str]) -> list[str]:
    """Without the first word, its flags, and what looks like their values."""
    rest = argv[1:]
    while rest and (is_flag(rest[0]) or "=" in rest[0] or re.fullmatch(r"-?[\d,x-]+", rest[0])):
        rest = rest[1:]
    return rest


def script_words(path: str) -> list[str]:
    """The words that the kernel puts before a script's path: its `#!` line, at most one argument."""
    try:
        with Path(path).open("rb") as f:
            line = f.readline(256)
    except OSError:
        return []
    return line[2:].decode(errors="surrogateescape").strip().split(None, 1) if line.startswith(b"#!") else []


def shebang(path: str) -> str:
    """The interpreter a script names; `/usr/bin/env bash` gives `bash`. Empty for a binary or no file."""
    words = " ".join(script_words(path)).split()
    if len(words) > 1 and PurePosixPath(words[0]).name == "env":
        return next((w for w in words[1:] if not w.startswith("-")), "")
    return words[0] if words else ""
