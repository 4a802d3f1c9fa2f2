"""Every error a user can meet, in one tree, each with its exit code.

    DeployError
    +-- InputError          2   hosts.yaml, playbook, payload or flag; nothing was touched
    +-- TransportError      4   SSH could not reach or would not talk to the host
    |   +-- HostKeyError        unknown or changed host key
    +-- LockedError         5   another run holds the host
    +-- DriftError          6   live files are foreign, no variant fits, or the host has moved
    +-- GateFailed          1   a gate failed; the host is as it was before
    +-- ContactLost         8   the connection is gone, the host goes on by itself
    +-- Interrupted       130   Ctrl-C or SIGTERM; the host is as it was before

That an undo is incomplete (3) and that a gate could not decide (7) is no error here: the host says so.

A message answers four questions: which stage, which host, what state the host is in now, what to type next.
"""

from __future__ import annotations

from pathlib import Path

NOTHING_DONE = "nothing was touched"


class DeployError(Exception):
    """Base of all errors shown to the user. Never escapes as a traceback: `cli.run` prints `render()`."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        stage: str = "",
        host: str = "",
        state: str = "",
        next_command: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.host = host
        self.state = state
        self.next_command = next_command

    def render(self) -> str:
        """One line: `HOST: STAGE: message; host state; next: command` (empty parts left out)."""
        head = ": ".join(part for part in (self.host, self.stage, self.message) if part)
        tail = [self.state] if self.state else []
        if self.next_command:
            tail.append(f"next: {self.next_command}")
        return "; ".join([head, *tail])


class InputError(DeployError):
    """Bad YAML, host, payload or flag. Carries the file, line (1-based) and field where there is one."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        file: Path | str | None = None,
        line: int | None = None,
        field: str = "",
        **more: str,
    ) -> None:
        super().__init__(message, state=NOTHING_DONE, **more)
        self.file = str(file) if file is not None else ""
        self.line = line
        self.field = field

    def render(self) -> str:
        """`FILE:LINE: FIELD: message; nothing was touched`."""
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        head = ": ".join(part for part in (place, self.field, super().render()) if part)
        return head


class TransportError(DeployError):
    """SSH: unreachable, refused, not authenticated, timed out before anything was started."""

    exit_code = 4


class HostKeyError(TransportError):
    """The host's key is unknown or is not the one on file."""


class LockedError(DeployError):
    """Another run holds the host's venv."""

    exit_code = 5


class DriftError(DeployError):
    """Live files are neither base nor ours, no payload variant fits, or the host moved since."""

    exit_code = 6


class GateFailed(DeployError):
    """A gate failed and everything done was undone."""

    exit_code = 1


class ContactLost(DeployError):
    """The connection was lost after the runner had started; the host continues to its verdict."""

    exit_code = 8


class Interrupted(DeployError):
    """The user interrupted; the host was put back."""

    exit_code = 130


# The order in which a fleet reports: the gravest first (a host that needs a person before all else).
GRAVITY = (3, 8, 4, 6, 5, 1, 7, 130, 2, 0)


def gravest(codes: list[int]) -> int:
    """The exit code of a fleet: the gravest of its hosts' codes; 0 for none."""
    return min(codes, key=lambda code: GRAVITY.index(code) if code in GRAVITY else -1, default=0)
