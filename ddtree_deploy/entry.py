"""The console script: a signal is answered in one line also while the libraries are still loading."""

from __future__ import annotations

import gc
import os
import signal
import sys

from ddtree_deploy.running import signals


def main() -> None:
    """Run the command line; exits with its code."""
    with signals.ending_at_once():
        # What is loaded now stays to the end: to look through it for garbage is a tenth of the start.
        gc.set_threshold(100_000)
        from ddtree_deploy.cli import run as command_line
    for number in signals.SIGNALS:  # both end a command in order, and with one code
        signal.signal(number, signals.raises)
    code = command_line()
    os._exit(_flushed(code))  # to take the libraries down piece by piece is another tenth


def _flushed(code: int) -> int:
    """The exit code once all is written: that of a command whose output was lost is not 0."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BrokenPipeError:
            pass  # whoever read it has gone
        except OSError as error:
            os.write(2, f"ddtree-deploy: the output is incomplete: {error.strerror}\n".encode())
            code = code or 1
    return code
