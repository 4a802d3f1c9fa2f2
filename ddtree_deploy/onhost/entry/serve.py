"""The exec of a rollout, on the host: say what the host is; then wait, for a run may begin."""

from __future__ import annotations

from ..facts import gather
from .launch import launch
from .receive import line


def serve(request: bytes, sources: bytes) -> int:
    """Print the facts. Then 0 when fd 0 ends, since nothing more was wanted; else as the run ends.

    request: a FactsRequest as JSON. sources: the zip that this code came in.
    """
    status = gather.main(request)
    if status:
        return status
    header = line(0)
    return launch(header, sources) if header else 0
