"""The console script while its libraries load."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# The import of the command line stands still, as it does for seconds on a busy machine, and is struck there.
STRUCK = """
import os, signal, sys

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "ddtree_deploy.cli":
            os.kill(os.getpid(), int(sys.argv[1]))
            signal.pause()

sys.meta_path.insert(0, Slow())
from ddtree_deploy.entry import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_libraries_load_is_one_line_and_130(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "ddtree-deploy: interrupted; nothing was touched\n"
