"""``--speculative-ddtree-debug-metrics``: one JSON line per verified tree.

SGLang's accept rate divides accepted by drafted tokens, which for a tree says nothing: all but one path is
meant to be rejected.  Accept length and these lines are what to look at.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import torch

from sglang_ddtree.ddtree_utils import ROOT, DDTree, follow_verified_tree, summarize_ddtree
from sglang_ddtree.ddtree_verify import AcceptedPaths, describe

logger = logging.getLogger(__name__)


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
