"""The commands of the runner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

USAGE = "run RUN_DIR | follow RUN_DIR OFFSET | recover SITE_DIR | unlock SITE_DIR SECONDS"


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    commands: dict[str, tuple[int, Callable[[list[str]], int]]] = {
        "run": (1, _run),
        "follow": (2, _follow),
        "recover": (1, _recover),
        "unlock": (2, _unlock),
        "guard": (2, _guard),  # by systemd, before it starts the service; `__main__` looks at the lock first
        "recover-run": (2, _recover_run),  # internal: a recovery of one run, with its venv's lock inherited
    }
    count, command = commands.get(words[0] if words else "", (-2, _run))
    if len(words) != count + 1:
        print(f"usage: {USAGE}", file=sys.stderr)
        return 2
    return command(words[1:])


def _run(words: list[str]) -> int:
    from .run.runner import run

    return run(Path(words[0]))


def _follow(words: list[str]) -> int:
    from .run.follow import follow

    return follow(Path(words[0]), int(words[1]))


def _recover(words: list[str]) -> int:
    from .recovery.orphans import recover_site

    return recover_site(Path(words[0]))


def _recover_run(words: list[str]) -> int:
    from .run.resume import run_recovery

    return run_recovery(Path(words[0]), int(words[1]))


def _guard(words: list[str]) -> int:
    from .recovery.guard_check import may_start

    return may_start(Path(words[0]), words[1])


def _unlock(words: list[str]) -> int:
    from .run.unlock import unlock

    return unlock(Path(words[0]), float(words[1]))
