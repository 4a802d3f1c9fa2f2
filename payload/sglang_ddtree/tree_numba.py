"""The fast host-side builder: whole batches in compiled code, bit for bit the reference's result.

Numba is among SGLang's own dependencies.  Rank paths are packed, 8 bits a level, most significant level
first, and compared after the score, so that ties come out in lexicographic order.  Two candidates that are
in the heap at the same time never extend one another, so zero-filled paths of different lengths cannot
compare equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

MAX_DEPTH = 16  # levels of a packed path
MAX_RANKS = 256


class Candidate(NamedTuple):
    """A node on offer: its score, packed rank path, parent node, level (depth - 1) and rank."""

    score: float
    high: np.uint64
    low: np.uint64
    parent: int
    level: int
    rank: int


class Heap(NamedTuple):
    """A binary heap of candidates, one array per field."""

    score: np.ndarray
    high: np.ndarray
    low: np.ndarray
    parent: np.ndarray
    level: np.ndarray
    rank: np.ndarray


@numba.njit
def _get(heap, at):
    return Candidate(
        heap.score[at], heap.high[at], heap.low[at], heap.parent[at], heap.level[at], heap.rank[at]
    )


@numba.njit
def _put(heap, at, one):
    heap.score[at], heap.high[at], heap.low[at] = one.score, one.high, one.low
    heap.parent[at], heap.level[at], heap.rank[at] = one.parent, one.level, one.rank


@numba.njit
def _before(one, other):
    """Whether a candidate is taken before another: heavier, or as heavy and lexicographically first."""
    if one.score != other.score:
        return one.score > other.score
    if one.high != other.high:
        return one.high < other.high
    return one.low < other.low


@numba.njit
def _push(heap, size, one):
    """Sift a candidate up from the end of a heap of ``size``."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        above = _get(heap, up)
        if not _before(one, above):
            break
        _put(heap, at, above)
        at = up
    _put(heap, at, one)


@numba.njit
def _drop_top(heap, size):
    """Remove the top of a heap of ``size``: sift the last candidate down from there."""
    last = size - 1
    one = _get(heap, last)
    at, down = 0, 1
    while down < last:
        below = _get(heap, down)
        if down + 1 < last:
            right = _get(heap, down + 1)
            if _before(right, below):
                below, down = right, down + 1
        if not _before(below, one):
            break
        _put(heap, at, below)
        at, down = down, 2 * down + 1
    _put(heap, at, one)


@numba.njit
def _next_sibling(one, score):
    """The candidate after ``one`` in its row: the path's last rank plus one."""
    step = np.uint64(1) << np.uint64(8 * (7 - one.level % 8))
    if one.level < 8:
        return Candidate(score, one.high + step, one.low, one.parent, one.level, one.rank + 1)
    return Candidate(score, one.high, one.low + step, one.parent, one.level, one.rank + 1)


@numba.njit
def build_trees(topk_ids, topk_logps, budget, out):
    """Build and compile ``bs`` trees into ``out``.

    Args:
        topk_ids: ``[bs, L, k]`` int64.
        topk_logps: ``[bs, L, k]`` float32 or float64, falling along each row; a row ends at its first entry
            that is not finite, a tree at its first empty row.  ``L <= 16``, ``k <= 256``.
        budget: draft nodes at most; ``N = budget + 1``.
        out: arrays of empty trees (parents and links -1, the rest 0).
    """
    batch, depth_limit, width = topk_logps.shape
    heap = Heap(
        np.empty(budget + 2, topk_logps.dtype),
        np.empty(budget + 2, np.uint64),
        np.empty(budget + 2, np.uint64),
        np.empty(budget + 2, np.int64),
        np.empty(budget + 2, np.int64),
        np.empty(budget + 2, np.int64),
    )
    empty_path = np.uint64(0)
    for row in range(batch):
        logps, ids = topk_logps[row], topk_ids[row]
        parents, scores = out.parents[row], out.scores[row]
        count, size = 1, 0
        if budget > 0 and depth_limit > 0 and width > 0 and np.isfinite(logps[0, 0]):
            _push(heap, size, Candidate(scores[0] + logps[0, 0], empty_path, empty_path, 0, 0, 0))
            size = 1
        while size > 0 and count <= budget:
            one = _get(heap, 0)
            _drop_top(heap, size)
            size -= 1
            node = count
            count += 1
            parents[node], scores[node] = one.parent, one.score
            out.ranks[row, node], out.depths[row, node] = one.rank, one.level + 1
            out.tokens[row, node] = ids[one.level, one.rank]
            if one.rank + 1 < width and np.isfinite(logps[one.level, one.rank + 1]):
                score = scores[one.parent] + logps[one.level, one.rank + 1]
                _push(heap, size, _next_sibling(one, score))
                size += 1
            level = one.level + 1
            if level < depth_limit and np.isfinite(logps[level, 0]):
                # The first child's path is its parent's, with a zero more at the end.
                _push(heap, size, Candidate(one.score + logps[level, 0], one.high, one.low, node, level, 0))
                size += 1
        out.num_nodes[row] = count
        _compile(row, count, budget + 1, out)


@numba.njit
def _compile(row, count, width, out):
    """Links and visibility of one tree of ``count`` nodes, padded to ``width``."""
    parents = out.parents[row]
    for node in range(count - 1, 0, -1):
        out.next_sibling[row, node] = out.next_token[row, parents[node]]
        out.next_token[row, parents[node]] = node
    for node in range(width):
        sees = out.visibility[row, node]
        sees[node] = True
        ancestor = parents[node]
        while ancestor >= 0:
            sees[ancestor] = True
            ancestor = parents[ancestor]


@numba.njit
def clear_ancestors(parents, masks):
    """Un-set in ``masks`` ``[>= bs, N, N]`` what trees with these ``[bs, N]`` parents have set."""
    batch, width = parents.shape
    for row in range(batch):
        for node in range(width):
            ancestor = node
            while ancestor >= 0:
                masks[row, node, ancestor] = False
                ancestor = parents[row, ancestor]
