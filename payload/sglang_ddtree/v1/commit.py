"""From accepted paths to committed state, on SGLang 0.5.13.

The V1 line allocates the slots of a verify window anew at every step and frees what is not committed, slot
by slot.  So the accepted nodes' KV stays where it is: their slots become the request's next ones.  (The newer
line hands out a window's slots by position; there the KV is moved.)
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.speculative.spec_utils import assign_req_to_token_pool_func

from sglang_ddtree.kernels.walk import AcceptedPaths


def append_accepted_tokens(reqs: list[Any], paths: AcceptedPaths) -> list[int]:
    """Give each request its accepted drafts and bonus, up to where it finishes.

    Returns:
        Tokens appended per request: as many nodes of its path are to be committed.
    """
    appended = []
    lengths = paths.commit_lens.tolist()
    for req, row, length in zip(reqs, paths.tokens.tolist(), lengths, strict=True):
        count = 0
        for token in row[:length]:
            req.output_ids.append(token)
            count += 1
            req.update_finish_state()
            if req.finished():
                break
        req.spec_verify_ct += 1
        req.spec_num_correct_drafts += count - 1
        appended.append(count)
    return appended


def nodes_to_keep(paths: AcceptedPaths, commit_lens: torch.Tensor) -> torch.Tensor:
    """``[sum(commit_lens)]`` int64 batch-wide indices of the nodes to commit, request after request.

    Args:
        commit_lens: ``[bs]``, nodes of each path to commit, at least the root.
    """
    steps = torch.arange(paths.accept_index.shape[1], device=paths.accept_index.device)
    return paths.accept_index[steps < commit_lens.unsqueeze(1)].long()


def commit_slots(batch: ScheduleBatch, kept: torch.Tensor, commit_lens_cpu: list[int]) -> None:
    """Keep the slots of the ``kept`` nodes, in that order; free the others; advance the requests' lengths.

    Args:
        batch: ``out_cache_loc`` holds the ``[bs * N]`` window slots; afterwards the kept ones.
        kept: batch-wide node indices, ``[sum(commit_lens)]``.
        commit_lens_cpu: committed tokens per request.
    """
    slots = batch.out_cache_loc
    rejected = torch.ones(len(slots), dtype=torch.bool, device=slots.device)
    rejected[kept] = False
    batch.token_to_kv_pool_allocator.free(slots[rejected])
    batch.out_cache_loc = slots[kept]
    commit_lens = torch.tensor(commit_lens_cpu, dtype=batch.seq_lens.dtype, device=batch.seq_lens.device)
    assign_req_to_token_pool_func(
        batch.req_pool_indices,
        batch.req_to_token_pool.req_to_token,
        batch.seq_lens,
        batch.seq_lens + commit_lens,
        batch.out_cache_loc,
        len(commit_lens_cpu),
    )
    for req, length in zip(batch.reqs, commit_lens_cpu, strict=True):
        req.kv_committed_len += length
        req.kv_allocated_len = req.kv_committed_len
    batch.seq_lens.add_(commit_lens)
    batch.seq_lens_cpu.add_(torch.tensor(commit_lens_cpu, dtype=batch.seq_lens_cpu.dtype))
    batch.seq_lens_sum += sum(commit_lens_cpu)
