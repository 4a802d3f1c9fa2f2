"""Run a check script as the host would, but in a fork of this process, which has SGLang imported already."""

import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def reason(self):
        return (self.err.strip().splitlines() or [""])[-1]


def in_fork(function):
    """Call ``function`` in a child process; its return value (None: 0) or SystemExit is the status."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stdout.flush(), sys.stderr.flush()
        child = os.fork()
        if child == 0:
            status = 99
            try:
                os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                status = function() or 0
            except SystemExit as stop:
                status = stop.code or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        out.seek(0), err.seek(0)
        return Outcome(os.waitstatus_to_exitcode(status), out.read(), err.read())


def run_script(script, *arguments, python_path=()):
    def run():
        forget_payload()
        sys.path[:0] = [str(path) for path in python_path]
        sys.argv = [str(script), *arguments]
        runpy.run_path(str(script), run_name="__main__")

    return in_fork(run)


def forget_payload():
    """Drop this process's own payload and its path entries, so that only the staged one can be found."""
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang_ddtree"]:
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not (Path(entry or ".") / "sglang_ddtree").exists()]
