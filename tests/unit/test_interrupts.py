"""Signals on the controller: the first one counts, the others do not take the place of the exit code."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ddtree_deploy.running.interrupts import Interrupts

PROGRAM = """
import os, signal, sys
from ddtree_deploy.running.interrupts import Interrupts
code = 0
with Interrupts() as interrupts:
    if sys.argv[1] == "held":
        interrupts.hold()
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        code = 130
    code = 130 if interrupts.count else code
    interrupts.release()
    os.kill(os.getpid(), signal.SIGTERM)  # while the outcome is shown
os.kill(os.getpid(), signal.SIGTERM)  # while the interpreter ends
os.kill(os.getpid(), signal.SIGINT)
sys.exit(code)
"""


@pytest.mark.parametrize("when", ["held", "at once"])
def test_signals_after_the_first_do_not_replace_its_exit_code(when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, when], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_without_a_signal_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
