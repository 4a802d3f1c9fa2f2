"""The walk down each tree along the target's own choices, and what it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sglang_ddtree.kernels.walk import walk_trees
from sglang_ddtree.spec_tree import verify_tree_greedy_func


@dataclass(frozen=True)
class AcceptedPaths:
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


def walk_tree(verify_input: Any, choices: torch.Tensor, max_nodes: int) -> AcceptedPaths:
    """Walk each tree while the target's choice at a node is one of its children.

    Trees on the device are walked by our kernel, in one launch; others by SGLang's greedy tree-verify kernel.
    Neither asks how a choice was made, so they serve draws from the target's distribution as well as argmax.

    Args:
        verify_input: the trees, ``N`` nodes each, as the DDTreeVerifyInput of either line.
        choices: ``[bs, N]`` int64, the target's own token at every node.
        max_nodes: ``P``, nodes on the longest possible path.
    """
    parents = getattr(verify_input, "parents", None)  # which the V1 line has not
    if parents is not None:
        return AcceptedPaths(*walk_trees(parents, verify_input.draft_token, choices, max_nodes))
    bs, nodes = choices.shape
    device = choices.device
    predict = torch.zeros(bs * nodes, dtype=torch.int32, device=device)
    accept_index = torch.full((bs, max_nodes), -1, dtype=torch.int32, device=device)
    num_correct_drafts = torch.zeros(bs, dtype=torch.int32, device=device)
    verify_tree_greedy_func(
        predicts=predict,
        accept_index=accept_index,
        accept_token_num=num_correct_drafts,
        candidates=verify_input.draft_token.view(bs, nodes),
        retrieve_index=verify_input.retrieve_index,
        retrieve_next_token=verify_input.retrieve_next_token,
        retrieve_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=choices,
    )
    # At an accepted node, predict holds what follows it: the next node's token, at the last one the bonus.
    on_path = accept_index >= 0
    tokens = torch.where(on_path, predict[accept_index.clamp(min=0).long()].long(), 0)
    bonus_tokens = tokens.gather(1, num_correct_drafts.long().unsqueeze(1)).squeeze(1)
    return AcceptedPaths(
        accept_index=accept_index,
        num_correct_drafts=num_correct_drafts,
        commit_lens=num_correct_drafts + 1,
        tokens=tokens,
        bonus_tokens=bonus_tokens,
        following_tokens=predict,
    )


def describe(paths: AcceptedPaths) -> list[dict[str, Any]]:
    """Accepted node indices (within the request) and bonus per request, for logs."""
    nodes = paths.accept_index.tolist()
    return [
        {"accepted": [node - row[0] for node in row if node >= 0], "bonus": bonus}
        for row, bonus in zip(nodes, paths.bonus_tokens.tolist(), strict=True)
    ]
