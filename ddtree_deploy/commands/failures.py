"""How an error is told to programs; to people: `running/complaint.py`."""

from __future__ import annotations

from typing import Any

from ddtree_deploy.errors import DeployError
from ddtree_deploy.running import next_command


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
