"""What a test needs of the machine. Without it the test is skipped, unless the machine must have it."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(what: str, switch: str) -> NoReturn:
    """Skip; fail where DDTREE_REQUIRE_<switch> is set: a machine meant to run it must not pass without.

    `what` says what is lacking, as in "no Chromium here: apt-get install chromium".
    """
    name = f"DDTREE_REQUIRE_{switch}"
    if os.environ.get(name, "") not in ("", "0"):
        pytest.fail(f"{what} ({name} is set)", pytrace=False)
    pytest.skip(f"{what} ({name}=1 makes this a failure)")
