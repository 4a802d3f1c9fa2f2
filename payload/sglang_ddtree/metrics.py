"""What a worker tells of its verified trees; nothing unless asked for.

- ``--speculative-ddtree-debug-metrics``: a JSON line per tree, and its invariants checked.
- SGLang's ``--enable-metrics``: ``sglang:ddtree_*`` on ``/metrics``.

SGLang's accept rate divides accepted by drafted tokens, which for a tree says nothing: all but one path is
meant to be rejected.  Accept length and what is told here are what to look at.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from sglang_ddtree.ddtree_utils import ROOT, DDTree, follow_verified_tree, summarize_ddtree
from sglang_ddtree.ddtree_walk import describe
from sglang_ddtree.kernels.build import DeviceTrees
from sglang_ddtree.kernels.walk import AcceptedPaths
from sglang_ddtree.prometheus import TreeExporter
from sglang_ddtree.server_args import DDTreeConfig
from sglang_ddtree.tree_batch import DDTreeBatch
from sglang_ddtree.vocab_shards import gather_ranks

logger = logging.getLogger(__name__)


class Stopwatch:
    """Seconds between entering and leaving: of this process, or with ``device`` of the work given to it.

    Device time is taken by events, so nothing waits here; ``seconds`` waits for what has not run yet.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._events = None
        if device is not None and device.type != "cpu":
            module = torch.get_device_module(device)
            self._events = [module.Event(enable_timing=True) for _ in range(2)]

    def __enter__(self) -> Stopwatch:
        self._mark(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._mark(1)

    @property
    def seconds(self) -> float:
        if self._events is None:
            return self._end - self._begin
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) / 1000

    def _mark(self, which: int) -> None:
        if self._events is not None:
            self._events[which].record()
        elif which == 0:
            self._begin = time.perf_counter()
        else:
            self._end = time.perf_counter()


class TreeMetrics:
    """The reports of one worker.

    Args:
        debug: log and check every tree.
        exporter: where ``/metrics`` gets its figures from, None for nowhere.
        tp_group: SGLang's tensor-parallel group; its first rank reports, but all compare their trees.
        device: of the target, whose time is taken.
    """

    def __init__(self, *, debug: bool, exporter: TreeExporter | None, tp_group: Any, device: torch.device):
        self._debug, self._exporter, self._group, self._device = debug, exporter, tp_group, device

    @classmethod
    def of_server(cls, config: DDTreeConfig, device: str) -> TreeMetrics:
        """What the server's flags ask of this rank."""
        from sglang.srt.runtime_context import get_observability, get_parallel, get_serving

        group = get_parallel().tp_group
        export = get_observability().enable_metrics and group.rank_in_group == 0
        labels = {"model_name": get_serving().served_model_name} if export else {}
        return cls(
            debug=config.debug_metrics,
            exporter=TreeExporter(labels) if export else None,
            tp_group=group,
            device=torch.device(device),
        )

    @property
    def enabled(self) -> bool:
        return self._debug or self._exporter is not None

    def on_device(self) -> Stopwatch:
        """For the verify forward: events only where somebody reads them."""
        return Stopwatch(self._device if self.enabled else None)

    def record(
        self,
        trees: DDTreeBatch | DeviceTrees,
        choices: torch.Tensor,
        paths: AcceptedPaths,
        reqs: Sequence[Any],
        *,
        budget: int,
        building: Stopwatch,
        verifying: Stopwatch,
    ) -> None:
        """Report one step; this reads the accepted paths back from the device.

        Args:
            choices: ``[bs, N]`` the target's token at every node.
            reqs: the requests, as SGLang's scheduler has them.
            budget: of this step.
            building, verifying: how long it took.
        """
        if self._debug:
            self._compare_ranks(trees)
            if self._group.rank_in_group == 0:
                log_verified_trees(trees.trees(), budget, choices, paths, reqs)
        if self._exporter is not None:
            self._exporter.observe(
                budget=budget,
                accepted=paths.num_correct_drafts.tolist(),
                depths=trees.depths.amax(1).tolist(),
                build_seconds=building.seconds,
                verify_seconds=verifying.seconds,
            )

    def _compare_ranks(self, trees: DDTreeBatch | DeviceTrees) -> None:
        if self._group.world_size == 1:
            return
        content = b"".join(part.cpu().numpy().tobytes() for part in (trees.parents, trees.token_ids))
        digests = gather_ranks(torch.tensor([zlib.crc32(content)], device=self._device), self._group)
        if len(set(digests.flatten().tolist())) > 1:
            logger.error("ddtree_invariant_broken: the ranks built different trees: %s", digests.tolist())


def chain_accepted(tree: DDTree, choices: Sequence[int]) -> int:
    """Drafts accepted if only the tree's chain (the best token at each depth) had been verified."""
    ranks, accepted, node = [0, *tree.node_ranks.tolist()], 0, ROOT
    while True:
        child = tree.child_maps[node].get(choices[node])
        if child is None or ranks[child] != 0:
            return accepted
        accepted, node = accepted + 1, child


def log_verified_trees(
    trees: Sequence[DDTree], budget: int, choices: torch.Tensor, paths: AcceptedPaths, reqs: Sequence[Any]
) -> None:
    """Log each tree's summary; an accepted path that the tree or its chain contradicts is an error.

    Args:
        choices: ``[bs, N]`` the target's token at every node.
    """
    for tree, row, path, req in zip(trees, choices.tolist(), describe(paths), reqs, strict=True):
        summary = summarize_ddtree(tree, budget, path["accepted"], path["bonus"]).to_dict()
        chain = chain_accepted(tree, row)
        line = {"rid": req.rid, **summary, "chain_accepted_draft_count": chain}
        logger.info("ddtree_verify %s", json.dumps(line))
        if (path["accepted"], path["bonus"]) != follow_verified_tree(
            tree.child_maps, row[: len(tree.parents)]
        ):
            logger.error("ddtree_invariant_broken: the walk differs from the tree's: %s", json.dumps(line))
        if summary["accepted_draft_count"] < chain:
            logger.error("ddtree_invariant_broken: the chain would accept more: %s", json.dumps(line))
