"""For tests that need root. CI sets DDTREE_REQUIRE_ROOT=1: it must not lose them in silence."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


def need_root(why: str, able: Callable[[], object] = lambda: True) -> None:
    """Skip, or fail where root is required, unless we are root and then `able`."""
    if os.geteuid() == 0 and able():
        return
    if os.environ.get("DDTREE_REQUIRE_ROOT", "") not in ("", "0"):
        pytest.fail(f"DDTREE_REQUIRE_ROOT is set: {why}", pytrace=False)
    pytest.skip(why)
