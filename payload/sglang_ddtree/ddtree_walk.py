"""The walk down each tree along the target's own choices, and what it accepts."""

from __future__ import annotations

from typing import Any

import torch

from sglang_ddtree.kernels.walk import AcceptedPaths, walk_trees
from sglang_ddtree.spec_tree import verify_tree_greedy_func
from sglang_ddtree.verify_input import TreeVerifyInput


def walk_tree(verify_input: TreeVerifyInput, choices: torch.Tensor, max_nodes: int) -> AcceptedPaths:
    """Walk each tree while the target's choice at a node is one of its children.

    Trees on the device are walked by our kernel, in one launch; others by SGLang's greedy tree-verify kernel.
    Neither asks how a choice was made, so they serve draws from the target's distribution as well as argmax.

    Args:
        verify_input: the trees, ``N`` nodes each.
        choices: ``[bs, N]`` int64, the target's own token at every node.
        max_nodes: ``P``, nodes on the longest possible path.
    """
    if verify_input.parents is not None:
        return walk_trees(verify_input.parents, verify_input.draft_token, choices, max_nodes)
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
