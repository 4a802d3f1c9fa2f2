"""What the host shows: control characters escaped, secrets masked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping

from .protocol import Launch


def escape(text: str) -> str:
    """One printable line: what is not printable as an escape (`\\x1b`), tabs as they are.

    A terminal must never obey what a host prints, and a line must not read as what it is not (bidirectional
    overrides, zero-width characters); a log must get one line.
    """
    return "".join(c if c.isprintable() or c == "\t" else _code(c) for c in text)


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else char.encode("unicode_escape").decode()


def last_line(output: str) -> str:
    """What a program said last, as one printable line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return escape(lines[-1])[:300] if lines else "no output"


MASK = "***"


_SECRET_WORDS = {"key", "apikey", "secret", "password", "passwd", "token", "credential", "credentials"}


def is_flag(word: str) -> bool:
    """`--name`, `--name=value` and `-x` are flags; `-1` and `-0.5` are values."""
    return bool(re.match(r"--?[A-Za-z]", word))


def values_end(argv: list[str], start: int, is_end: Callable[[str], bool] = is_flag) -> int:
    """Index after the flag at `start` and its values. `--flag=value` has none further."""
    end = start + 1
    if "=" not in argv[start]:
        while end < len(argv) and not is_end(argv[end]):
            end += 1
    return end


def is_secret_name(name: str) -> bool:
    """`api-key`, `HF_TOKEN`, `ssl-keyfile-password`; not `max-total-tokens` or `tokenizer-path`."""
    return re.split(r"[-_]", name.lower())[-1] in _SECRET_WORDS


def secret_values(argv: list[str], env: Mapping[str, str]) -> set[str]:
    """What must never be shown: the values of secret flags and variables."""
    found = {value for name, value in env.items() if is_secret_name(name)}
    for i, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if is_secret_name(name):
            found.update([value] if equals else argv[i + 1 : values_end(argv, i)])
    return {value for value in found if value}


def mask_argv(argv: list[str], secrets: Iterable[str] = ()) -> list[str]:
    """The command line for people: secret values are replaced by `***`."""
    out: list[str] = []
    hide = False
    for word in argv:
        name, equals, _ = word[2:].partition("=") if word.startswith("--") else ("", "", "")
        if name and is_secret_name(name):
            out.append(f"--{name}={MASK}" if equals else word)
            hide = not equals
        elif hide and not is_flag(word):
            out.append(MASK)
        else:
            hide = False
            out.append(word)
    return [mask_text(word, secrets) for word in out]


def masked(launch: Launch) -> Launch:
    """A launch without the values of flags and variables that are named like secrets."""
    return Launch(
        command=None if launch.command is None else mask_argv(launch.command),
        set={n: MASK if v is not None and is_secret_name(n) else v for n, v in launch.set.items()},
        unset=launch.unset,
        env={n: MASK if is_secret_name(n) else v for n, v in launch.env.items()},
    )


def mask_text(text: str, secrets: Iterable[str]) -> str:
    """`text` without any of `secrets` (those of fewer than 4 characters would hide innocent text)."""
    for secret in sorted((s for s in secrets if len(s) >= 4), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def shown(argv: list[str], secrets: Iterable[str] = ()) -> str:
    """One line that a shell would take, masked."""
    return " ".join(shlex.quote(word) for word in mask_argv(argv, secrets))
