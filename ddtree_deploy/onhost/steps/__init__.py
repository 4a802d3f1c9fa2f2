"""One module per kind of step: `do`, and `undo` with `check_undone` where it changes something."""

from __future__ import annotations

import importlib
from types import ModuleType

KINDS = (
    "lock",
    "preflight",
    "backup",
    "stage",
    "compile",
    "smoke",
    "baseline",
    "stop",
    "install",
    "start",
    "health",
    "tokens",
    "acceptance",
    "benchmark",
    "soak",
    "calibrate",
    "sweep",
    "confirm",
    "unlock",
    "run",
)
# What judges the service after its start.
GATES = ("tokens", "acceptance", "benchmark", "soak")
# What restarts the service, and leaves it as it was.
RESTARTS = ("calibrate", "sweep")


def load(kind: str) -> ModuleType:
    """The module of a step kind. Raises LookupError for a kind that this runner does not have."""
    if kind not in KINDS:
        raise LookupError(f"unknown kind of step {kind!r}")
    return importlib.import_module(f".{kind}", __name__)
