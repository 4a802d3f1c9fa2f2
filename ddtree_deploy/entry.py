"""The console script: a signal is answered in one line also while the libraries are still loading."""

from __future__ import annotations

import signal
import sys

from ddtree_deploy import streams
from ddtree_deploy.running import signals


def main() -> None:
    """Run the command line; exits with its code."""
    streams.harden()
    with signals.ending_at_once():
        from ddtree_deploy.cli import finished
        from ddtree_deploy.cli import run as command_line
    for number in signals.SIGNALS:  # both end a command in order, and with one code
        signal.signal(number, signals.raises)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, signals.raises)
    sys.exit(finished(command_line()))
