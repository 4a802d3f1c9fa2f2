"""Trees on the device to the arrays that one verify forward reads."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sglang_ddtree.kernels import rows_per_program
from sglang_ddtree.kernels.build import DeviceTrees

_COLUMNS = 32  # of the mask, that a program works on at a time
_ROWS = 32


class CompiledTrees(NamedTuple):
    """``bs`` trees as SGLang's backends and tree-verify kernels read them.

    Attributes:
        draft_token: ``[bs * N]`` int64, the root's token first, 0 for padding.
        positions: ``[bs * N]`` int64, prefix length plus depth; padding stands at the root's.
        custom_mask: flat bool allow-mask, requests one after another, row-major.  QLEN_ONLY: ``[N, N]`` a
            request.  FULL_MASK: ``[N, prefix + N]``, the prefix visible.  Padding sees the prefix and itself.
        retrieve_index: ``[bs, N]`` int64, batch-wide node index, ``-1`` for padding.
        retrieve_next_token, retrieve_next_sibling: ``[bs, N]`` int64, within the request, ``-1`` for none.
    """

    draft_token: torch.Tensor
    positions: torch.Tensor
    custom_mask: torch.Tensor
    retrieve_index: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor


def compile_trees(
    trees: DeviceTrees,
    root_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    prefix_lens_sum: int,
    *,
    full_mask: bool,
) -> CompiledTrees:
    """Encode a batch of trees for verify: tokens, positions, links and mask in one launch.

    Limits: those of :func:`~sglang_ddtree.kernels.build.build_trees`; its work per tree is ``N * N * L``.

    Args:
        trees: ``bs`` trees of ``N`` rows.
        root_tokens: ``[bs]`` int64, the last bonus tokens.
        prefix_lens: ``[bs]`` integers on the device, committed lengths.
        prefix_lens_sum: their sum, known on the host: it sizes a full mask.
        full_mask: the FULL_MASK layout; else QLEN_ONLY.
    """
    batch, nodes = trees.parents.shape
    device = trees.parents.device
    prefix_lens = prefix_lens.to(torch.int64)
    index, next_token, next_sibling = torch.empty((3, batch, nodes), dtype=torch.int64, device=device)
    compiled = CompiledTrees(
        draft_token=torch.empty(batch * nodes, dtype=torch.int64, device=device),
        positions=torch.empty(batch * nodes, dtype=torch.int64, device=device),
        custom_mask=torch.ones(
            nodes * (nodes * batch + (prefix_lens_sum if full_mask else 0)), dtype=torch.bool, device=device
        ),
        retrieve_index=index,
        retrieve_next_token=next_token,
        retrieve_next_sibling=next_sibling,
    )
    if batch:
        rows = rows_per_program(batch * nodes, on_device=_ROWS)
        _compile_kernel[(triton.cdiv(batch * nodes, rows),)](
            trees.num_nodes,
            trees.parents,
            trees.depths,
            trees.token_ids,
            root_tokens.to(torch.int64),
            prefix_lens,
            torch.cumsum(prefix_lens, 0) - prefix_lens,
            compiled.draft_token,
            compiled.positions,
            compiled.custom_mask.view(torch.uint8),
            index,
            next_token,
            next_sibling,
            batch * nodes,
            NODES=nodes,
            DEPTH=trees.max_depth,
            FULL_MASK=full_mask,
            ROWS=rows,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
    return compiled


@triton.jit
def _compile_kernel(
    num_nodes_ptr,
    parents_ptr,
    depths_ptr,
    tokens_ptr,
    root_tokens_ptr,
    prefix_lens_ptr,
    prefix_before_ptr,
    draft_token_ptr,
    positions_ptr,
    mask_ptr,
    index_ptr,
    next_token_ptr,
    next_sibling_ptr,
    all_rows,
    NODES: tl.constexpr,
    DEPTH: tl.constexpr,
    FULL_MASK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``ROWS`` nodes of the batch. Every cell is written once, by one program: there is no order to keep."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < all_rows
    request = row // NODES
    node = row % NODES
    parents = parents_ptr + request * NODES
    parent = tl.load(parents_ptr + row, mask=inside, other=-1)
    prefix = tl.load(prefix_lens_ptr + request, mask=inside, other=0)
    size = tl.load(num_nodes_ptr + request, mask=inside, other=0)

    token = tl.load(tokens_ptr + row, mask=inside, other=0)
    root_token = tl.load(root_tokens_ptr + request, mask=inside, other=0)
    tl.store(draft_token_ptr + row, tl.where(node == 0, root_token, token), mask=inside)
    depth = tl.load(depths_ptr + row, mask=inside, other=0)
    tl.store(positions_ptr + row, prefix + depth, mask=inside)
    tl.store(index_ptr + row, tl.where(node < size, row, -1).to(tl.int64), mask=inside)

    # Masks of long prefixes outgrow int32.
    if FULL_MASK:
        before = tl.load(prefix_before_ptr + request, mask=inside, other=0)
        row_start = before * NODES + row.to(tl.int64) * NODES + node * prefix + prefix
    else:
        row_start = row.to(tl.int64) * NODES

    first_child = tl.full([ROWS], NODES, tl.int32)
    sibling = tl.full([ROWS], NODES, tl.int32)
    for start in range(0, NODES, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        in_tile = inside[:, None] & (column < NODES)
        its_parent = tl.load(parents[:, None] + column, mask=in_tile, other=-1)
        is_child = its_parent == node[:, None]
        first_child = tl.minimum(first_child, tl.min(tl.where(is_child, column, NODES), 1))
        is_younger = (its_parent == parent[:, None]) & (column > node[:, None]) & (its_parent >= 0)
        sibling = tl.minimum(sibling, tl.min(tl.where(is_younger, column, NODES), 1))

        sees = column == node[:, None]
        ancestor = parent
        for _ in range(DEPTH):
            sees = sees | (column == ancestor[:, None])
            ancestor = tl.load(parents + ancestor, mask=ancestor >= 0, other=-1)
        tl.store(mask_ptr + row_start[:, None] + column, sees.to(tl.uint8), mask=in_tile)
    first_child = tl.where(first_child < NODES, first_child, -1)
    tl.store(next_token_ptr + row, first_child.to(tl.int64), mask=inside)
    sibling = tl.where(sibling < NODES, sibling, -1)
    tl.store(next_sibling_ptr + row, sibling.to(tl.int64), mask=inside)
