"""From accepted paths to committed state."""

from __future__ import annotations

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.speculative.spec_utils import (
    commit_mamba_states_after_verify,
    move_accept_tokens_to_target_kvcache,
)

from sglang_ddtree.kernels.walk import AcceptedPaths


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
