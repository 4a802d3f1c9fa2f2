"""Best-first trees on the device: one program per request, bit for bit the plain reference's trees."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sglang_ddtree.ddtree_utils import DDTree, ddtree_from_arrays
from sglang_ddtree.kernels import rows_per_program

MAX_DEPTH = 16  # levels of a packed path
MAX_RANKS = 256
MAX_BUDGET = 1024  # one register lane per node that may have children


class DeviceTrees(NamedTuple):
    """``bs`` trees of at most ``N = budget + 1`` nodes. Node 0 is the root, padding comes last.

    Attributes:
        num_nodes: ``[bs]`` int64, nodes with the root.
        parents: ``[bs, N]`` int64, ``-1`` for the root and padding.
        ranks, depths, token_ids: ``[bs, N]`` int64, 0 for the root and padding.
        scores: ``[bs, N]`` path log-probs in the dtype given, 0 for the root and padding.
        max_depth: ``L``, no node is deeper.
    """

    num_nodes: torch.Tensor
    parents: torch.Tensor
    ranks: torch.Tensor
    depths: torch.Tensor
    token_ids: torch.Tensor
    scores: torch.Tensor
    max_depth: int

    def trees(self) -> list[DDTree]:
        """The trees one by one, on the host: for logs and checks."""
        num_nodes, parents, ranks, depths, token_ids, scores = (one.cpu() for one in self[:-1])
        return [
            ddtree_from_arrays(
                parents=parents[row, :size].tolist(),
                token_ids=token_ids[row, 1:size].numpy(),
                depths=depths[row, 1:size].numpy(),
                logws=scores[row, 1:size].numpy(),
                ranks=ranks[row, 1:size].numpy(),
            )
            for row, size in enumerate(num_nodes.tolist())
        ]


def why_not(depth: int, width: int, budget: int) -> str | None:
    """The limit of :func:`build_trees` that these sizes exceed, in words, or None."""
    for what, size, limit in (
        ("levels", depth, MAX_DEPTH),
        ("candidates a level", width, MAX_RANKS),
        ("draft nodes", budget, MAX_BUDGET),
    ):
        if size > limit:
            return f"{size} {what} exceed the Triton kernel's {limit}"
    return None


def build_trees(topk_ids: torch.Tensor, topk_logps: torch.Tensor, budget: int) -> DeviceTrees:
    """Build one tree per request.

    Limits: ``L <= 16``, ``k <= 256``, ``budget <= 1024``.  Its work grows with the square of the budget: all
    lanes are searched for every node taken.

    Args:
        topk_ids: ``[bs, L, k]`` int64, distinct within a row.
        topk_logps: ``[bs, L, k]`` float32 or float64 log-probs, non-increasing along each row.  A row's
            candidates end at its first entry that is not finite; a row without candidates ends the tree.
        budget: draft nodes per tree at most.

    Raises:
        ValueError: a limit is exceeded, or a dtype is another.
    """
    batch, depth, width = topk_ids.shape
    if reason := why_not(depth, width, budget):
        raise ValueError(reason)
    if topk_ids.dtype != torch.int64 or topk_logps.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"need int64 ids and float32 or float64 log-probs, got {topk_ids.dtype}, {topk_logps.dtype}"
        )
    device, nodes = topk_ids.device, budget + 1
    links = torch.full((batch, nodes), -1, dtype=torch.int64, device=device)
    ranks, depths, tokens = torch.zeros((3, batch, nodes), dtype=torch.int64, device=device)
    trees = DeviceTrees(
        num_nodes=torch.ones(batch, dtype=torch.int64, device=device),
        parents=links,
        ranks=ranks,
        depths=depths,
        token_ids=tokens,
        scores=torch.zeros((batch, nodes), dtype=topk_logps.dtype, device=device),
        max_depth=depth,
    )
    if batch and depth and width and budget:
        lanes = max(2, triton.next_power_of_2(budget))
        rows = rows_per_program(batch, on_device=1)
        _build_kernel[(triton.cdiv(batch, rows),)](
            topk_ids.contiguous(),
            topk_logps.contiguous(),
            *trees[:-1],
            batch,
            BUDGET=budget,
            DEPTH=depth,
            WIDTH=width,
            ROWS=rows,
            LANES=lanes,
            num_warps=1 if lanes <= 128 else 4,
        )
    return trees


@triton.jit
def _is_finite(value):
    return (value > float("-inf")) & (value < float("inf"))  # neither, for a NaN


@triton.jit
def _build_kernel(
    ids_ptr,
    logps_ptr,
    num_nodes_ptr,
    parents_ptr,
    ranks_ptr,
    depths_ptr,
    tokens_ptr,
    scores_ptr,
    batch,
    BUDGET: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    """``ROWS`` trees. Lane ``s`` offers the next child of node ``s``; the best offer becomes the next node.

    That is the heap of the reference spread over registers: an offer that is taken makes way for its
    next sibling in the same lane, and its first child is what the new node's lane offers.  Rank paths are
    packed, 8 bits a level, and compared after the score; they start at the least int64, so that signed order
    is path order.  Two offers never extend one another, so zero-filled paths of different lengths differ.
    """
    LOWEST: tl.constexpr = -0x8000000000000000
    HIGHEST: tl.constexpr = 0x7FFFFFFFFFFFFFFF
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < batch
    ids = ids_ptr + row * (DEPTH * WIDTH)
    logps = logps_ptr + row * (DEPTH * WIDTH)
    out = row * (BUDGET + 1)
    lane = tl.arange(0, LANES)[None, :]

    first = tl.load(logps, mask=exists, other=float("-inf"))
    base = tl.zeros([ROWS, LANES], logps_ptr.dtype.element_ty)  # score of the lane's node
    offer = base + first[:, None]  # score of its next child
    is_open = (lane == 0) & _is_finite(offer)
    level = tl.zeros([ROWS, LANES], tl.int32)
    rank = tl.zeros([ROWS, LANES], tl.int32)
    high = tl.full([ROWS, LANES], LOWEST, tl.int64)
    low = tl.full([ROWS, LANES], LOWEST, tl.int64)
    count = tl.full([ROWS], 1, tl.int64)
    for node in range(1, BUDGET + 1):
        best = tl.max(tl.where(is_open, offer, float("-inf")), 1)
        hit = is_open & (offer == best[:, None])
        best_high = tl.min(tl.where(hit, high, HIGHEST), 1)
        hit = hit & (high == best_high[:, None])
        best_low = tl.min(tl.where(hit, low, HIGHEST), 1)
        hit = hit & (low == best_low[:, None])
        # One lane is left, or none: its place, level and rank in one reduction.
        code = tl.max(tl.where(hit, (lane << 13) | (level << 8) | rank, -1), 1)
        found = code >= 0
        code = tl.maximum(code, 0)
        at_level = (code >> 8) & 31
        at_rank = code & 255

        tl.store(parents_ptr + out + node, (code >> 13).to(tl.int64), mask=found)
        tl.store(ranks_ptr + out + node, at_rank.to(tl.int64), mask=found)
        tl.store(depths_ptr + out + node, (at_level + 1).to(tl.int64), mask=found)
        tl.store(scores_ptr + out + node, best, mask=found)
        at = at_level * WIDTH + at_rank
        tl.store(tokens_ptr + out + node, tl.load(ids + at, mask=found, other=0), mask=found)
        count += found.to(tl.int64)

        # The next sibling takes the lane.
        sibling = tl.load(logps + at + 1, mask=found & (at_rank + 1 < WIDTH), other=float("-inf"))
        offer = tl.where(hit, base + sibling[:, None], offer)
        is_open = is_open & ((hit == 0) | _is_finite(sibling)[:, None])
        rank = tl.where(hit, at_rank[:, None] + 1, rank)
        step = tl.full([ROWS], 1, tl.int64) << (8 * (7 - at_level % 8)).to(tl.int64)
        high = tl.where(hit, (best_high + tl.where(at_level < 8, step, 0))[:, None], high)
        low = tl.where(hit, (best_low + tl.where(at_level < 8, 0, step))[:, None], low)

        # The first child opens the new node's lane. The last node has none: no one will ask.
        deeper = found & (at_level + 1 < DEPTH)
        child = tl.load(logps + (at_level + 1) * WIDTH, mask=deeper, other=float("-inf"))
        new = lane == node
        base = tl.where(new, best[:, None], base)
        offer = tl.where(new, (best + child)[:, None], offer)
        is_open = is_open | (new & _is_finite(child)[:, None])
        level = tl.where(new, at_level[:, None] + 1, level)
        high = tl.where(new, best_high[:, None], high)
        low = tl.where(new, best_low[:, None], low)
    tl.store(num_nodes_ptr + row, count, mask=exists)
