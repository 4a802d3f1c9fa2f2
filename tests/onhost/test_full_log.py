"""A disk too full for the runner's own log costs the log, not the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GOES_ON = """
from ddtree_deploy.onhost.run.undo import log_traceback
try:
    raise OSError(28, "No space left on device")
except OSError:
    {what}
print("went on")
"""


def _run(what: str) -> str:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", GOES_ON.format(what=what)],
            check=False,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
        )
    return done.stdout


def test_a_traceback_that_finds_no_room_does_not_end_the_run() -> None:
    assert _run("log_traceback()") == "went on\n"
    assert _run("import traceback; traceback.print_exc()") == "", "then this test shows nothing"
