"""What goes wrong here, in one line on stderr: with the next command to type, and never a traceback."""

from __future__ import annotations

import sys
import tempfile
import traceback

from ddtree_deploy.errors import DeployError
from ddtree_deploy.running import next_command
from ddtree_deploy.text import safe, shortened


def complain(line: str) -> None:
    """One line on stderr."""
    print(f"ddtree-deploy: {shortened(safe(next_command.typed(line), 100_000))}", file=sys.stderr, flush=True)


def bug(error: BaseException) -> DeployError:
    """An error that nobody foresaw, as one of ours; its traceback is kept in a file if that can be made."""
    kept = f"ddtree-deploy {sys.argv[1:]}\nPython {sys.version}\n\n"
    kept += "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="ddtree-deploy-bug-",
            suffix=".log",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as log:
            log.write(kept)
        where = f"is in {log.name}"
    except OSError as problem:
        where = f"could not be kept ({problem.strerror})"
    what = str(error).strip().splitlines()
    return DeployError(
        f"unexpected {type(error).__name__}: {what[0] if what else 'no message'}; this is a bug, the "
        f"traceback {where}",
        next_command="ddtree-deploy status (a run that had begun goes on by itself)",
    )
