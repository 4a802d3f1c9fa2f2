"""One module per kind of step: `do`, and `undo` with `check_undone` where it changes something."""

from __future__ import annotations

import importlib
from types import ModuleType


def load(kind: str) -> ModuleType:
    """The module of a step kind. Raises LookupError for a kind that this runner does not have."""
    from ..wire.kinds import KINDS

    if kind not in KINDS:
        raise LookupError(f"unknown kind of step {kind!r}")
    return importlib.import_module(f".{kind}", __name__)
