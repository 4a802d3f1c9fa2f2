"""How a command line runs Python: by which interpreter, with which options, and what comes first on its path.

Read from the words as the kernel gets them, after all expansion. What cannot be read with certainty (a shell,
`uv run`, a binary) is Unknown, never guessed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from . import command_line

_PYTHON = re.compile(r"(python|pypy)[\d.]*[a-z]*")
# Of those without a value, what decides on the path or on bytecode; -u, -q, -v and the like are left out.
_KEPT = "BEIOPRsS"
_LONG_WITH_VALUE = {"--check-hash-based-pycs"}


class Unknown(Exception):
    """This command line does not tell how Python is run; the message says why, for people."""


@dataclass(frozen=True)
class PythonCall:
    """`command`: the interpreter, absolute, and its options. `mode`: module | script | code. `first`: the
    folder (or zip file) that comes first on its path where that is not the working folder. `env` and
    `folder`: the environment and the working folder that it gets.
    """

    command: list[str]
    mode: str
    target: str
    first: str
    env: dict[str, str]
    folder: str


def read(argv: list[str], env: Mapping[str, str], folder: str, search: str = "") -> PythonCall:
    """How `argv` runs Python, given the environment and working folder that it is run with.

    search: where the first word is looked up, if not on PATH of `env`. Raises Unknown.
    """
    rest, env = list(argv), dict(env)
    path = search or env.get("PATH", os.defpath)
    while rest and PurePosixPath(rest[0]).name in command_line.PREFIXES:
        if PurePosixPath(rest[0]).name == "env":
            rest, env, folder = _env(rest[1:], env, folder)
        else:
            rest = command_line.strip_prefix(rest)
        path = env.get("PATH", os.defpath)
    if not rest:
        raise Unknown("the command line is empty")
    name = PurePosixPath(rest[0]).name
    if name in command_line.SHELLS:
        raise Unknown(f"it runs through a shell ({name})")
    program = _found(rest[0], path, folder)
    if _is_python(program):
        return _python(program, rest[1:], env, folder)
    return _script(program, env, folder)


def _is_python(program: str) -> bool:
    names = (os.path.basename(program), os.path.basename(os.path.realpath(program)))
    return any(_PYTHON.fullmatch(name) for name in names)


def _found(program: str, path: str, folder: str) -> str:
    """As exec finds it. Not resolved: a link's own place tells Python its venv."""
    if "/" in program:
        return os.path.join(folder, program)
    found = shutil.which(program, path=path)
    if not found:
        raise Unknown(f"{program} is not found in {path}")
    return os.path.join(folder, found)


def _env(rest: list[str], env: dict[str, str], folder: str) -> tuple[list[str], dict[str, str], str]:
    """What `env` runs, and the environment and folder that it runs it with."""
    while rest:
        word = rest.pop(0)
        if word in ("-", "-i", "--ignore-environment"):
            env = {}
        elif word in ("-u", "--unset") and rest:
            env.pop(rest.pop(0), None)
        elif word.startswith("--unset="):
            env.pop(word.partition("=")[2], None)
        elif word in ("-C", "--chdir") and rest:
            folder = os.path.join(folder, rest.pop(0))
        elif word.startswith("--chdir="):
            folder = os.path.join(folder, word.partition("=")[2])
        elif word in ("-S", "--split-string"):
            continue  # of a first line, whose words are split already
        elif word == "--":
            continue
        elif word.startswith("-"):
            raise Unknown(f"env is called with {word}")
        elif "=" in word:
            name, _, value = word.partition("=")
            env[name] = value
        else:
            return [word, *rest], env, folder
    return [], env, folder


def _script(program: str, env: dict[str, str], folder: str) -> PythonCall:
    """A program that is a script: of Python's, if its first line says so."""
    words = " ".join(command_line.script_words(program)).split()
    if not words:
        raise Unknown(f"{program} is no Python and no script of it")
    if PurePosixPath(words[0]).name == "env":
        words, env, folder = _env(words[1:], env, folder)
    if words and "/" not in words[0]:
        words[0] = _found(words[0], env.get("PATH", os.defpath), folder)
    if not words or not _is_python(words[0]):
        raise Unknown(f"{program} is a script of {' '.join(words) or 'nobody'}")
    return _python(words[0], [*words[1:], program], env, folder)


def _python(program: str, rest: list[str], env: dict[str, str], folder: str) -> PythonCall:
    options: list[str] = []
    mode = target = ""
    while rest and not mode:
        word = rest.pop(0)
        if word in _LONG_WITH_VALUE and rest:
            options += [word, rest.pop(0)]
        elif word == "--" and rest:
            mode, target = "script", rest.pop(0)
        elif word.startswith("--") or word == "-":
            raise Unknown(f"Python is called with {word}")
        elif word.startswith("-"):
            mode, target = _letters(word[1:], rest, options)
        else:
            mode, target = "script", word
    if not mode:
        raise Unknown("Python is called without a module or a script")
    first = ""
    if mode == "script":
        first = os.path.realpath(os.path.join(folder, target))
        if not os.path.isdir(first) and not first.endswith((".zip", ".pyz", ".pex")):
            first = os.path.dirname(first)
    return PythonCall([program, *options], mode, target, first, env, folder)


def _letters(letters: str, rest: list[str], options: list[str]) -> tuple[str, str]:
    """One word of options, of which the last may have a value: the mode and target that it ends in."""
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in "cmWX":
            value = letters or (rest.pop(0) if rest else "")
            if letter in "cm":
                return ("module" if letter == "m" else "code"), value
            options += [f"-{letter}", value]
            break
        if letter in "hV?":
            raise Unknown(f"Python is called with -{letter}")
        if letter in _KEPT:
            options.append(f"-{letter}")
    return "", ""
