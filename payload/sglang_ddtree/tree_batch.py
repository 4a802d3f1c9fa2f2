"""Trees of one batch, padded to a common width, in the arrays that verify reads."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from sglang_ddtree.ddtree_utils import NO_NODE, DDTree, compile_ddtree_retrieve, ddtree_from_arrays
from sglang_ddtree.tree_arrays import TreeArrays
from sglang_ddtree.tree_reference import build_raw_tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DDTreeBatch:
    """``bs`` trees, each padded to ``N`` nodes, on the host. Node 0 is the root, padding comes last.

    Attributes:
        num_nodes: ``[bs]`` int64, nodes with the root.
        parents: ``[bs, N]`` int64, ``-1`` for the root and padding.
        ranks, depths: ``[bs, N]`` int64, 0 for the root and padding.
        scores: ``[bs, N]`` path log-probs, 0 for the root and padding.
        token_ids: ``[bs, N]`` int64; column 0 is left 0 for the root's token.
        retrieve_index: ``[bs, N]`` int64, batch-wide node index, ``-1`` for padding.
        retrieve_next_token, retrieve_next_sibling: ``[bs, N]`` int64, within the request, ``-1`` for none.
        visibility: ``[bs, N, N]`` bool; padding sees itself.
    """

    num_nodes: torch.Tensor
    parents: torch.Tensor
    ranks: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor
    token_ids: torch.Tensor
    retrieve_index: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor
    visibility: torch.Tensor

    def tree(self, row: int) -> DDTree:
        """Request ``row``'s tree on its own."""
        nodes = slice(1, int(self.num_nodes[row]))
        return ddtree_from_arrays(
            parents=[NO_NODE, *self.parents[row, nodes].tolist()],
            token_ids=self.token_ids[row, nodes].numpy(),
            depths=self.depths[row, nodes].numpy(),
            logws=self.scores[row, nodes].numpy(),
            ranks=self.ranks[row, nodes].numpy(),
        )

    def trees(self) -> list[DDTree]:
        return [self.tree(row) for row in range(len(self.num_nodes))]


class MaskWorkspace:
    """Ancestor masks that are reused from step to step.

    A mask has ``N * N`` cells of which a tree sets at most ``N * (L + 1)``: un-setting those is far cheaper
    than fresh zeroed memory (1 MiB a tree at a budget of 1024).  What ``take`` returned is valid until the
    next ``take``.
    """

    def __init__(self) -> None:
        self._masks = np.zeros((0, 0, 0), dtype=bool)
        self._parents = np.zeros((0, 0), dtype=np.int64)

    def take(self, parents: np.ndarray) -> np.ndarray:
        """``[bs, N, N]`` bool, all False, for trees whose parents will stand in ``parents`` ``[bs, N]``."""
        batch, width = parents.shape
        if self._masks.shape[0] < batch or self._masks.shape[1] != width:
            self._masks = np.zeros((batch, width, width), dtype=bool)
        elif len(self._parents):
            clear_ancestors(self._parents, self._masks)
        self._parents = parents
        return self._masks[:batch]


def build_ddtree_batch(
    topk_ids: np.ndarray, topk_logps: np.ndarray, budget: int, workspace: MaskWorkspace | None = None
) -> DDTreeBatch:
    """Build and compile one tree per request.

    Args:
        topk_ids: ``[bs, L, k]`` int64, distinct within a row.
        topk_logps: ``[bs, L, k]`` float32 or float64 log-probs, non-increasing along each row.  A row's
            candidates end at its first entry that is not finite; a row without candidates ends the tree.
        budget: draft nodes per tree at most; the width is ``N = budget + 1``.
        workspace: where ``visibility`` lives (default: fresh memory).
    """
    batch, depth, candidates = topk_ids.shape
    width = budget + 1
    parents, next_token, next_sibling = np.full((3, batch, width), NO_NODE, dtype=np.int64)
    ranks, depths, tokens = np.zeros((3, batch, width), dtype=np.int64)
    out = TreeArrays(
        num_nodes=np.empty(batch, dtype=np.int64),
        parents=parents,
        ranks=ranks,
        depths=depths,
        scores=np.zeros((batch, width), dtype=topk_logps.dtype),
        tokens=tokens,
        next_token=next_token,
        next_sibling=next_sibling,
        visibility=np.zeros((batch, width, width), dtype=bool)
        if workspace is None
        else workspace.take(parents),
    )
    select_builder(depth, candidates)(topk_ids, topk_logps, budget, out)
    index = np.arange(batch * width).reshape(batch, width)
    index = np.where(np.arange(width) < out.num_nodes[:, None], index, NO_NODE)
    return DDTreeBatch(
        num_nodes=torch.from_numpy(out.num_nodes),
        parents=torch.from_numpy(parents),
        ranks=torch.from_numpy(ranks),
        depths=torch.from_numpy(depths),
        scores=torch.from_numpy(out.scores),
        token_ids=torch.from_numpy(tokens),
        retrieve_index=torch.from_numpy(index),
        retrieve_next_token=torch.from_numpy(next_token),
        retrieve_next_sibling=torch.from_numpy(next_sibling),
        visibility=torch.from_numpy(out.visibility),
    )


def clear_ancestors(parents: np.ndarray, masks: np.ndarray) -> None:
    """Un-set in ``masks`` ``[>= bs, N, N]`` what trees with these ``[bs, N]`` parents have set."""
    try:
        from sglang_ddtree.tree_numba import clear_ancestors as clear
    except ImportError:
        masks[: len(parents)] = False
    else:
        clear(parents, masks)


@functools.cache
def select_builder(depth: int, width: int) -> Callable[..., None]:
    """The compiled builder where it can be used, else the reference; says once why not."""
    try:
        from sglang_ddtree import tree_numba
    except ImportError as error:
        logger.warning("DDTREE builds trees in plain Python: numba cannot be imported (%s)", error)
        return build_with_reference
    if depth > tree_numba.MAX_DEPTH or width > tree_numba.MAX_RANKS:
        logger.warning(
            "DDTREE builds trees in plain Python: %d levels, %d candidates exceed the compiled one's %d, %d",
            depth,
            width,
            tree_numba.MAX_DEPTH,
            tree_numba.MAX_RANKS,
        )
        return build_with_reference
    return tree_numba.build_trees


def build_with_reference(topk_ids: np.ndarray, topk_logps: np.ndarray, budget: int, out: TreeArrays) -> None:
    """``tree_numba.build_trees`` by the plain reference: same arguments, same result."""
    for row, (ids, logps) in enumerate(zip(topk_ids, topk_logps, strict=True)):
        finite = np.isfinite(logps)
        widths = np.where(finite.all(axis=1), logps.shape[1], finite.argmin(axis=1))
        raw = build_raw_tree(logps, budget, widths)
        depths, ranks = np.array(raw.depths, dtype=np.int64), np.array(raw.ranks, dtype=np.int64)
        tree = ddtree_from_arrays(
            parents=raw.parents,
            token_ids=ids[depths - 1, ranks],
            depths=depths,
            logws=np.array(raw.scores, dtype=logps.dtype),
            ranks=ranks,
        )
        compiled = compile_ddtree_retrieve(tree, budget + 1)
        size = len(raw.parents)
        out.num_nodes[row] = size
        out.parents[row, :size] = raw.parents
        out.ranks[row, 1:size], out.depths[row, 1:size], out.scores[row, 1:size] = ranks, depths, raw.scores
        out.tokens[row] = compiled.token_ids
        out.next_token[row] = compiled.retrieve_next_token
        out.next_sibling[row] = compiled.retrieve_next_sibling
        out.visibility[row] = compiled.visibility
