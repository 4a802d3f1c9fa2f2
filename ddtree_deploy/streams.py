"""Standard streams that end nothing: a run on a host goes on, whoever reads what we say of it, and in
whatever letters.

What an encoding has not is escaped. What cannot be written is lost: a reader that has gone, a full disk, a
terminal that was closed; `lost` tells of it at the end. Imports nothing of ours: it comes before all else.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

_outputs: list[_Output] = []


class _Output(io.FileIO):
    """A descriptor that takes everything. `error`: why all that came later was lost."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.error: OSError | None = None
        self.gone = errno.EIO if self.isatty() else errno.EPIPE  # what says that nobody reads any more

    def write(self, data: Any, /) -> int:
        while self.error is None:
            try:
                written = super().write(data)
                if written is not None:
                    return written
                select.select([], [self], [])  # whoever shares it has made it one that does not wait
            except OSError as error:
                self.error = error
        return len(data)


def harden() -> None:
    """Put such streams in the place of the interpreter's own. A descriptor that is closed becomes /dev/null:
    the first file or socket that we open must not be taken for stdout."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    sys.stdout, sys.stderr = _unfailing(1, sys.stdout), _unfailing(2, sys.stderr)


def _unfailing(fd: int, old: Any) -> io.TextIOWrapper:
    output = _Output(fd)
    _outputs.append(output)
    return io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=old.encoding if old is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=fd == 2 or output.isatty(),
    )


def lost() -> str:
    """Why output is incomplete; "" where all was written, or nobody was left to read it."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    errors = [o.error for o in _outputs if o.error is not None and o.error.errno != o.gone]
    return str(errors[0].strerror) if errors else ""
