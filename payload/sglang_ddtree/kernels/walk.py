"""The target's choices to accepted paths, on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sglang_ddtree.kernels import rows_per_program


class AcceptedPaths(NamedTuple):
    """What verify accepted, for ``bs`` requests and paths of at most ``P`` nodes (root included).

    Attributes:
        accept_index: ``[bs, P]`` int32, batch-wide node indices from the root on, ``-1`` past the path.
        num_correct_drafts: ``[bs]`` int32, accepted nodes without the root.
        commit_lens: ``[bs]`` int32, tokens to commit: accepted drafts and the bonus.
        tokens: ``[bs, P]`` int64, accepted drafts then the bonus, 0 past them.
        bonus_tokens: ``[bs]`` int64.
        following_tokens: ``[bs * N]`` int32, at an accepted node the token that follows it, else 0.
    """

    accept_index: torch.Tensor
    num_correct_drafts: torch.Tensor
    commit_lens: torch.Tensor
    tokens: torch.Tensor
    bonus_tokens: torch.Tensor
    following_tokens: torch.Tensor


def walk_trees(
    parents: torch.Tensor, draft_token: torch.Tensor, choices: torch.Tensor, max_nodes: int
) -> AcceptedPaths:
    """Walk each tree from its root while the target's choice at a node is one of its children.

    The walk does not ask how a choice was made: with the target's argmax it is the greedy walk, with a draw
    from the target's filtered distribution at every node it is the sampling walk, and lossless.

    Limits: tokens are distinct among siblings; ``N <= 1025``, as built.

    Args:
        parents: ``[bs, N]`` int64, ``-1`` for the root and padding.
        draft_token: ``[bs * N]`` int64.
        choices: ``[bs, N]`` int64, the target's own token at every node.
        max_nodes: ``P``, nodes on the longest possible path, the root included.
    """
    batch, nodes = choices.shape
    device = choices.device
    counts = torch.empty((2, batch), dtype=torch.int32, device=device)
    paths = AcceptedPaths(
        accept_index=torch.full((batch, max_nodes), -1, dtype=torch.int32, device=device),
        num_correct_drafts=counts[0],
        commit_lens=counts[1],
        tokens=torch.zeros((batch, max_nodes), dtype=torch.int64, device=device),
        bonus_tokens=torch.empty(batch, dtype=torch.int64, device=device),
        following_tokens=torch.zeros(batch * nodes, dtype=torch.int32, device=device),
    )
    if batch:
        rows = rows_per_program(batch, on_device=1)
        _walk_kernel[(triton.cdiv(batch, rows),)](
            parents,
            draft_token,
            choices.contiguous(),
            *paths,
            batch,
            NODES=nodes,
            MAX_NODES=max_nodes,
            ROWS=rows,
            LANES=max(2, triton.next_power_of_2(nodes)),
            num_warps=1 if nodes <= 256 else 4,
        )
    return paths


@triton.jit
def _walk_kernel(
    parents_ptr,
    draft_token_ptr,
    choices_ptr,
    accept_index_ptr,
    num_correct_ptr,
    commit_lens_ptr,
    tokens_ptr,
    bonus_ptr,
    following_ptr,
    batch,
    NODES: tl.constexpr,
    MAX_NODES: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    """``ROWS`` requests. All children are compared at once: no chain of loads along the siblings."""
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = request < batch
    at = request * NODES
    out = request * MAX_NODES
    lane = tl.arange(0, LANES)[None, :]
    is_node = exists[:, None] & (lane < NODES)
    parent = tl.load(parents_ptr + at[:, None] + lane, mask=is_node, other=-1)
    token = tl.load(draft_token_ptr + at[:, None] + lane, mask=is_node, other=0)

    node = tl.zeros([ROWS], tl.int32)
    choice = tl.load(choices_ptr + at, mask=exists, other=0)
    accepted = tl.zeros([ROWS], tl.int32)
    tl.store(accept_index_ptr + out, at, mask=exists)
    for step in range(1, MAX_NODES):
        # A walk that has ended stays where it is, and finds no child there again.
        match = (parent == node[:, None]) & (token == choice[:, None])
        child = tl.max(tl.where(match, lane, -1), 1)
        moved = exists & (child >= 0)
        tl.store(tokens_ptr + out + step - 1, choice, mask=moved)
        tl.store(following_ptr + at + node, choice.to(tl.int32), mask=moved)
        tl.store(accept_index_ptr + out + step, at + child, mask=moved)
        accepted += moved.to(tl.int32)
        node = tl.where(moved, child, node)
        choice = tl.load(choices_ptr + at + node, mask=exists, other=0)
    tl.store(tokens_ptr + out + accepted, choice, mask=exists)
    tl.store(following_ptr + at + node, choice.to(tl.int32), mask=exists)
    tl.store(bonus_ptr + request, choice, mask=exists)
    tl.store(num_correct_ptr + request, accepted, mask=exists)
    tl.store(commit_lens_ptr + request, accepted + 1, mask=exists)
