"""What was planned is what goes out: a run whose plan was approved before refuses any other."""

from __future__ import annotations

from collections.abc import Sequence

from ddtree_deploy.errors import NOTHING_DONE, DriftError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.planning import digest


def require(host: Host, expect: Sequence[str], found: str) -> None:
    """Raise DriftError where digests are expected, and the one that was found is none of them."""
    moved = digest.differences(expect, found) if expect else []
    if moved:
        raise _refused(
            host,
            f"not the plan that was expected; what differs: {', '.join(moved)}; its digest is {found}",
            f"ddtree-deploy plan {host.name}",
        )


def refuse_orphan(host: Host, expect: Sequence[str], orphan: str) -> None:
    """Raise DriftError where digests are expected of a host that has to be recovered: that changes it."""
    if expect:
        raise _refused(
            host,
            f"run {orphan} ended without a verdict: a plan made before its recovery is not what would go out",
            f"ddtree-deploy recover {host.name}, then ddtree-deploy plan {host.name}",
        )


def _refused(host: Host, message: str, following: str) -> DriftError:
    return DriftError(message, stage="plan", host=host.name, state=NOTHING_DONE, next_command=following)
