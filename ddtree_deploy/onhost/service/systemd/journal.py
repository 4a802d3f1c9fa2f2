"""The last lines of a unit in the journal, on every systemd from 245 on."""

from __future__ import annotations

import shutil
import subprocess

from ...programs import bounded

SECONDS = 30.0


def tail(shown: dict[str, str], lines: int, since: float) -> list[str]:
    """Oldest first. `shown`: the unit's properties, see `_which`."""
    return _ask(shown, since, "-o", "cat", "-n", str(lines))[::-1]


def mark(shown: dict[str, str], since: float) -> str:
    """The place of the newest line."""
    return "\n".join(_ask(shown, since, "-o", "export", "-n", "1", "--output-fields=__CURSOR"))


def _ask(shown: dict[str, str], since: float, *options: str) -> list[str]:
    """Newest first (`-r`): before systemd 254 `--since` with `-n N` gives the first N lines, not the last."""
    if shutil.which("journalctl") is None:
        return []
    space = shown.get("LogNamespace", "")
    where = [f"--namespace=+{space}"] if space else []  # and what PID 1 says of the unit
    argv = ["journalctl", "--no-pager", "-q", "-r", *where, *options, *_which(shown, since)]
    try:
        return bounded.call(argv, seconds=SECONDS).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []


def _which(shown: dict[str, str], since: float) -> list[str]:
    """Since a start of ours: of every try, because what ended a crash loop was said in an earlier one. Else:
    of the run at hand, with what PID 1 says of it.

    By the unit's own name: the journal knows no aliases.
    """
    run = shown.get("InvocationID", "")
    if since or not run:
        return ["-u", shown.get("Id", ""), *([f"--since=@{since:.3f}"] if since else [])]
    return [f"_SYSTEMD_INVOCATION_ID={run}", "+", f"INVOCATION_ID={run}"]
