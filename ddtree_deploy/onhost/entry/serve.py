"""The exec of a rollout, on the host: say what the host is; then wait, for a run may begin."""

from __future__ import annotations

from collections.abc import Callable

from ..facts import gather
from .launch import launch
from .receive import line


def serve(request: bytes, sources: Callable[[], bytes]) -> int:
    """Print the facts. Then 0 when fd 0 ends, since nothing more was wanted; else as the run ends.

    request: a FactsRequest as JSON. sources: gives the zip that this code came in; it may be on its way yet.
    """
    status = gather.main(request)
    if status:
        return status
    arrived = sources()
    header = line(0)
    return launch(header, arrived) if header else 0
