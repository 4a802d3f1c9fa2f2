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
    os.kill(os.getpid(), signal.SIGTERM)  # while the outcome is shown
os.kill(os.getpid(), signal.SIGTERM)  # while the interpreter ends
os.kill(os.getpid(), signal.SIGINT)
sys.exit(code)
"""


@pytest.mark.parametrize("when", ["held", "at once"])
@pytest.mark.starts
def test_signals_after_the_first_do_not_replace_its_exit_code(when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, when], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "")


LATE = """
import os, signal, sys
from ddtree_deploy.running.interrupts import Interrupts
with Interrupts() as interrupts:
    interrupts.begin()
    interrupts.hold()  # a run on the host, to its verdict: what is left is to tell it
    if sys.argv[1] == "told":
        os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[1] == "over":
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit(7)
"""


@pytest.mark.parametrize("when", ["told", "over"])
@pytest.mark.starts
def test_a_verdict_that_is_known_gets_out_whoever_interrupts(when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, when], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_a_signal_between_two_hosts_ends_the_command_before_the_second() -> None:
    with Interrupts() as interrupts:
        interrupts.begin()
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.begin()


def test_without_a_signal_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


HANGUP = """
import os, signal, sys
from ddtree_deploy.running.interrupts import Interrupts
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
code = 0
with Interrupts() as interrupts:
    interrupts.begin()
    if sys.argv[1] == "held":
        interrupts.hold()
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.count == 0, "no undo is asked for"
        interrupts.begin()  # the next host
    except KeyboardInterrupt:
        code = 130 if interrupts.held else 129
os.kill(os.getpid(), signal.SIGHUP) if code else None
sys.exit(code)
"""


@pytest.mark.parametrize(("when", "code"), [("nohup", 0), ("at once", 129), ("held", 129)])
@pytest.mark.starts
def test_a_terminal_that_is_closed_ends_nothing_that_runs_and_begins_nothing(when: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGUP, when], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (code, "")
