"""The next command to type, with the flags that this command was given.

`next: ddtree-deploy rollout ct129` is of no use to somebody who typed `--hosts lab.yaml`: it would use
another file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_FILES = ("--hosts", "--payload", "--playbook")
_TAKES = {  # the flags of each command that a text may name
    **dict.fromkeys(("rollout", "plan"), _FILES),
    **dict.fromkeys(("status", "drift"), ("--hosts", "--payload")),
    **dict.fromkeys(("verify", "bench", "calibrate", "sweep"), ("--hosts", "--playbook")),
    **dict.fromkeys(
        ("rollback", "releases", "attach", "recover", "unlock", "trust", "confirm"), ("--hosts",)
    ),
}
_OWN_BOOK = {"rollback": "rollback", "verify": "verify"}  # all others take a rollout's
_COMMAND = re.compile(rf"ddtree-deploy ({'|'.join(_TAKES)})((?: (?!-)[^\s,;()`]+)?)")

_given: dict[str, str] = {}
_running = ""


def remember(arguments: Sequence[str]) -> None:
    """Note the command that runs now, and its files."""
    global _running
    _given.clear()
    _running = next((word for word in arguments if not word.startswith("-")), "")
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in _FILES:
            given = value if equals else next(words, "")
            if given:
                _given[flag] = given


def typed(text: str) -> str:
    """`text` with the flags added to each command of ours in it that takes them."""
    return _COMMAND.sub(_with_flags, text) if _given else text


def _with_flags(match: re.Match[str]) -> str:
    command = match[1]
    # The playbook of a rollout means nothing to a rollback or a verify.
    same_book = _OWN_BOOK.get(command) == _OWN_BOOK.get(_running)
    flags = [f for f in _TAKES[command] if f in _given and (f != "--playbook" or same_book)]
    return match[0] + "".join(f" {flag} {shlex.quote(_given[flag])}" for flag in flags)
