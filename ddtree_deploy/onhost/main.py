"""The commands of the runner."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

USAGE = "run RUN_DIR | follow RUN_DIR OFFSET | recover SITE_DIR | unlock SITE_DIR SECONDS"
# Name -> module, its function, and what each word is made into. Only the module of the command is imported.
COMMANDS: dict[str, tuple[str, str, tuple[Callable[[str], Any], ...]]] = {
    "run": (".run.runner", "run", (Path,)),
    "follow": (".run.follow", "follow", (Path, int)),
    "recover": (".recovery.orphans", "recover_site", (Path,)),
    "unlock": (".run.unlock", "unlock", (Path, float)),
    # By systemd, before it starts the service; `__main__` looks at the lock first.
    "guard": (".recovery.guard_check", "may_start", (Path, str)),
    # Internal: a recovery of one run, with its venv's lock inherited.
    "recover-run": (".run.resume", "run_recovery", (Path, int)),
}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    name, *words = (sys.argv[1:] if argv is None else argv) or [""]
    module, function, kinds = COMMANDS.get(name, ("", "", ()))
    if not module or len(words) != len(kinds):
        print(f"usage: {USAGE}", file=sys.stderr)
        return 2
    command = getattr(importlib.import_module(module, __package__), function)
    return int(command(*(kind(word) for kind, word in zip(kinds, words, strict=True))))
