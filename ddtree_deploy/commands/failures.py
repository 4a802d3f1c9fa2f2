"""How an error is told: a line on stderr for people, an event for programs."""

from __future__ import annotations

import sys
from typing import Any

from ddtree_deploy.errors import DeployError
from ddtree_deploy.running import next_command
from ddtree_deploy.text import safe, shortened


def complain(line: str) -> None:
    """One line on stderr."""
    print(f"ddtree-deploy: {shortened(safe(next_command.typed(line), 100_000))}", file=sys.stderr, flush=True)


def error_event(error: DeployError) -> dict[str, Any]:
    """An error as an event of `--json`."""
    return {
        "e": "error",
        "host": error.host,
        "run": "",
        "exit": error.exit_code,
        "step": error.stage,
        "reason": error.message,
        "state": error.state,
        "next": next_command.typed(error.next_command),
    }
