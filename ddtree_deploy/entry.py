"""The console script: a signal is answered in one line also while the libraries are still loading."""

from __future__ import annotations

import os
import signal
import sys

from ddtree_deploy.running import signals


def main() -> None:
    """Run the command line; exits with its code."""
    with signals.ending_at_once():
        from ddtree_deploy.cli import run as command_line
    for number in signals.SIGNALS:  # both end a command in order, and with one code
        signal.signal(number, signals.raises)
    sys.exit(_flushed(command_line()))


def _flushed(code: int) -> int:
    """The exit code once all is written: that of a command whose output was lost is not 0."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):  # else whoever read it has gone
                os.write(2, f"ddtree-deploy: the output is incomplete: {error.strerror}\n".encode())
                code = code or 1
            # The interpreter flushes once more as it ends, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code
