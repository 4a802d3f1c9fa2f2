"""The plain best-first search: the definition that every faster builder is tested against.

Source: arXiv 2604.12989 (build), with the tie rule and the rounding fixed so that builders can be
compared bit by bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class RawTree(NamedTuple):
    """A draft tree in node order. Node 0 is the root; draft node ``i`` (1-based) is row ``i - 1``.

    Attributes:
        parents: ``n + 1`` node indices, ``-1`` for the root.
        ranks: ``n`` ranks of each draft node within its depth's candidate row.
        depths: ``n`` depths, the root's children being at 1.
        scores: ``n`` path log-probs, in the precision of the log-probs given.
    """

    parents: list[int]
    ranks: list[int]
    depths: list[int]
    scores: list[float]


def build_raw_tree(logps: np.ndarray, budget: int, widths: Sequence[int] | None = None) -> RawTree:
    """Take the ``budget`` heaviest prefix-closed rank paths of a product of marginals.

    A node's score is its parent's score plus its own log-prob, rounded once in the dtype of
    ``logps``.  Equal scores are taken in lexicographic order of the rank path.

    Args:
        logps: ``[L, k]`` float32 or float64, non-increasing along each row.
        budget: draft nodes at most; the root is not counted.
        widths: usable candidates per row (default: all ``k``).  The first row without any ends the tree.

    Returns:
        The tree, of ``min(budget, number of rank paths)`` draft nodes.
    """
    dtype = logps.dtype.type
    depth_limit = logps.shape[0]
    widths = [logps.shape[1]] * depth_limit if widths is None else list(widths)
    tree = RawTree([-1], [], [], [])
    if budget <= 0 or depth_limit == 0 or widths[0] == 0:
        return tree

    zero = dtype(0)
    # Entries compare as (-score, rank path): the heap pops the heaviest, ties in lexicographic order.
    # No two entries share a path, so the parent index is never compared.
    heap: list[tuple[float, tuple[int, ...], int]] = [(float(-(zero + logps[0, 0])), (0,), 0)]
    while heap and len(tree.ranks) < budget:
        negative, path, parent = heapq.heappop(heap)
        depth, rank, node = len(path), path[-1], len(tree.parents)
        tree.parents.append(parent)
        tree.ranks.append(rank)
        tree.depths.append(depth)
        tree.scores.append(-negative)

        if rank + 1 < widths[depth - 1]:
            base = zero if parent == 0 else dtype(tree.scores[parent - 1])
            sibling = base + logps[depth - 1, rank + 1]
            heapq.heappush(heap, (float(-sibling), (*path[:-1], rank + 1), parent))
        if depth < depth_limit and widths[depth]:
            child = dtype(-negative) + logps[depth, 0]
            heapq.heappush(heap, (float(-child), (*path, 0), node))
    return tree
