"""Trees of one batch, padded to a common width, in the arrays that verify reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sglang_ddtree.ddtree_utils import DDTree, build_ddtree_tree_from_topk, compile_ddtree_retrieve


@dataclass(frozen=True)
class DDTreeBatch:
    """``bs`` trees, each padded to ``N`` nodes, on the host.

    Attributes:
        trees: the trees themselves, for summaries.
        token_ids: ``[bs, N]`` int64; column 0 is left 0 for the root's token.
        depths: ``[bs, N]`` int64.
        retrieve_index: ``[bs, N]`` int64, batch-wide node index, ``-1`` for padding.
        retrieve_next_token, retrieve_next_sibling: ``[bs, N]`` int64, within the request, ``-1`` for none.
        visibility: ``[bs, N, N]`` bool.
    """

    trees: list[DDTree]
    token_ids: torch.Tensor
    depths: torch.Tensor
    retrieve_index: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor
    visibility: torch.Tensor


def build_ddtree_batch(topk_ids: np.ndarray, topk_logps: np.ndarray, budget: int) -> DDTreeBatch:
    """Build and compile one tree per request.

    Args:
        topk_ids: ``[bs, L, k]`` int64.
        topk_logps: ``[bs, L, k]`` float32, as :func:`build_ddtree_tree_from_topk` wants each row.
        budget: draft nodes per tree at most; the width is ``budget + 1``.
    """
    width = budget + 1
    trees = [
        build_ddtree_tree_from_topk(ids, logps, budget)
        for ids, logps in zip(topk_ids, topk_logps, strict=True)
    ]
    compiled = [compile_ddtree_retrieve(tree, width) for tree in trees]
    index = torch.stack([one.retrieve_index for one in compiled])
    offsets = torch.arange(len(trees)).unsqueeze(1) * width
    return DDTreeBatch(
        trees=trees,
        token_ids=torch.stack([one.token_ids for one in compiled]),
        depths=torch.stack([one.depths for one in compiled]),
        retrieve_index=torch.where(index >= 0, index + offsets, index),
        retrieve_next_token=torch.stack([one.retrieve_next_token for one in compiled]),
        retrieve_next_sibling=torch.stack([one.retrieve_next_sibling for one in compiled]),
        visibility=torch.stack([one.visibility for one in compiled]),
    )
