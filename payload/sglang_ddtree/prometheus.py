"""The ``sglang:ddtree_*`` metrics, beside SGLang's own on ``/metrics``."""

from __future__ import annotations

from collections.abc import Sequence

NODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)  # a DFlash block has at most 16 tokens
SECONDS = tuple(unit * scale for scale in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1) for unit in (1, 2, 5))


class TreeExporter:
    """Registers the metrics in this process; SGLang's HTTP server collects them from all processes.

    Args:
        labels: on every metric.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        # SGLang names the folder that processes share before any of them may import this.
        from prometheus_client import Counter, Gauge, Histogram

        names = list(labels)
        self._labels = labels
        self._trees = Counter(
            "sglang:ddtree_verified_trees", "Trees verified, by the budget in use.", [*names, "budget"]
        )
        self._budget = Gauge(
            "sglang:ddtree_budget",
            "Draft nodes per tree in the last step.",
            names,
            multiprocess_mode="mostrecent",
        ).labels(**labels)
        self._accepted = Histogram(
            "sglang:ddtree_accepted_nodes",
            "Draft nodes accepted per tree, root and bonus not counted.",
            names,
            buckets=NODES,
        ).labels(**labels)
        self._depth = Histogram("sglang:ddtree_depth", "Depth of each tree.", names, buckets=NODES).labels(
            **labels
        )
        self._build = Histogram(
            "sglang:ddtree_build_seconds",
            "Time to rank, build and compile a step's trees on the host.",
            names,
            buckets=SECONDS,
        ).labels(**labels)
        self._verify = Histogram(
            "sglang:ddtree_verify_seconds", "Time of a step's verify forward.", names, buckets=SECONDS
        ).labels(**labels)

    def observe(
        self,
        *,
        budget: int,
        accepted: Sequence[int],
        depths: Sequence[int],
        build_seconds: float,
        verify_seconds: float,
    ) -> None:
        """Add one step over ``len(accepted)`` trees."""
        self._trees.labels(**self._labels, budget=str(budget)).inc(len(accepted))
        self._budget.set(budget)
        for count in accepted:
            self._accepted.observe(count)
        for depth in depths:
            self._depth.observe(depth)
        self._build.observe(build_seconds)
        self._verify.observe(verify_seconds)
