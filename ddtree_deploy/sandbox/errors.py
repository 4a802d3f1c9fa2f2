"""What can go wrong while the sandbox is made, used or taken down."""

from __future__ import annotations

from ddtree_deploy.errors import DeployError


class SandboxError(DeployError):
    """The sandbox could not be brought into the wanted state; the message says which part of it."""

    def __init__(
        self, message: str, *, stage: str = "sandbox", host: str = "", state: str = "", next_command: str = ""
    ) -> None:
        super().__init__(message, stage=stage, host=host, state=state, next_command=next_command)


class PortTaken(SandboxError):
    """A port of the sandbox is held by a process that is not the sandbox's."""
