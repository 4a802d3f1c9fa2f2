"""From the target's choices to committed state: the walk, and the one commit that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.speculative.spec_utils import (
    commit_mamba_states_after_verify,
    move_accept_tokens_to_target_kvcache,
)

from sglang_ddtree.ddtree_info import DDTreeVerifyInput
from sglang_ddtree.release import verify_tree_greedy_func


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


def walk_tree(verify_input: DDTreeVerifyInput, choices: torch.Tensor, max_nodes: int) -> AcceptedPaths:
    """Walk each tree while the target's choice at a node is one of its children.

    SGLang's greedy tree-verify kernel does the walk; it never asks how a choice was made, so it serves
    draws from the target's distribution as well as its argmax.

    Args:
        verify_input: the trees, ``N`` nodes each.
        choices: ``[bs, N]`` int64, the target's own token at every node.
        max_nodes: ``P``, nodes on the longest possible path.
    """
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


def commit_accepted_paths(
    batch: ScheduleBatch,
    paths: AcceptedPaths,
    hidden_states: torch.Tensor,
    target_worker: TpModelWorker,
    num_nodes: int,
    *,
    is_hybrid: bool,
) -> torch.Tensor:
    """Move the accepted nodes' KV (and recurrent state) to the front of each window.

    The KV is moved, not re-pointed: window slots are handed out again by position, and a re-pointed slot
    would be shared with the next step's window.

    Args:
        batch: ``out_cache_loc`` holds the ``[bs * N]`` window slots, ``seq_lens`` the committed lengths.
        hidden_states: ``[bs * N, H']`` of the verify forward.

    Returns:
        ``[bs * P, H']`` hidden states of the accepted nodes, each row's padding repeating its root.
    """
    bs, max_nodes = paths.accept_index.shape
    if is_hybrid:
        commit_mamba_states_after_verify(
            target_worker, batch, paths.commit_lens, paths.accept_index, num_nodes
        )
    roots = torch.arange(bs, device=paths.accept_index.device).unsqueeze(1) * num_nodes
    if not _already_in_front(paths.accept_index, roots):
        _, allocator = target_worker.get_memory_pool()
        move_accept_tokens_to_target_kvcache(batch, paths.accept_index, paths.num_correct_drafts, allocator)
    rows = torch.where(paths.accept_index >= 0, paths.accept_index.long(), roots)
    return hidden_states.index_select(0, rows.view(bs * max_nodes))


def _already_in_front(accept_index: torch.Tensor, roots: torch.Tensor) -> bool:
    """Whether every path is nodes 0, 1, 2, ...: then the KV lies where it belongs. Free on the CPU only."""
    if accept_index.device.type != "cpu":
        return False
    in_order = roots + torch.arange(accept_index.shape[1])
    return bool(((accept_index < 0) | (accept_index == in_order)).all())


def describe(paths: AcceptedPaths) -> list[dict[str, Any]]:
    """Accepted node indices (within the request) and bonus per request, for logs."""
    nodes = paths.accept_index.tolist()
    return [
        {"accepted": [node - row[0] for node in row if node >= 0], "bonus": bonus}
        for row, bonus in zip(nodes, paths.bonus_tokens.tolist(), strict=True)
    ]
