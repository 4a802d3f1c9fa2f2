"""Bookkeeping of KV slots and of accepted tokens, in plain torch.

Contracts: the Triton kernels in ``sglang/kernels/ops/speculative`` and ``sglang/kernels/ops/kvcache``.
"""

from __future__ import annotations

import ctypes

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write the slots ``out_cache_loc``, request after request, to positions start to end of the table."""
    at = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        slots = out_cache_loc[at : at + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The other way round: read the slots of positions start to end into ``out_cache_loc``."""
    at = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """Read each request's ``topk * num_cols`` slots behind its sequence into ``out_cache_loc``."""
    count = topk * num_cols
    for i, (row, length) in enumerate(_rows(req_pool_indices, seq_lens)):
        slots = req_to_token[row, length : length + count]
        out_cache_loc[i * count : (i + 1) * count] = slots.to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """A slot table ``[bs * topk, pool_len]``: row (b, k) is the prefix of b, then branch k's draft slots."""
    width = req_to_token.shape[1]
    table = torch.zeros((req_pool_indices.numel() * topk, width), dtype=req_to_token.dtype)
    for b, (row, length) in enumerate(_rows(req_pool_indices, seq_lens)):
        for k in range(topk):
            start = length + k * num_steps
            count = min(num_steps, width - start)
            table[b * topk + k, :length] = req_to_token[row, :length]
            table[b * topk + k, length : length + count] = req_to_token[row, start : start + count]
    return table


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Move cache rows ``src_loc -> tgt_loc`` in every layer.

    Args:
        data_ptrs: address of each layer's buffer.
        strides: bytes of one row of each.
    """
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for base, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # All rows are read before the first is written: targets may be sources of later rows.
        rows = [ctypes.string_at(base + source * size, size) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * size, row, size)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Each request's last accepted token, into ``bonus_tokens``."""
    count = accept_lens.numel()
    last = torch.arange(count) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:count] = accept_tokens.view(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """The slots of the accepted nodes (those of ``accept_index`` that are not -1), packed."""
    index = accept_index.view(-1)
    index = index[index > -1].long()
    accept_out_cache_loc[: index.numel()] = out_cache_loc[index].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one and put its next token last (or at ``select_index``)."""
    for i, (start, count) in enumerate(_rows(extend_start_loc, extend_seq_lens)):
        if count <= 0:
            continue
        input_ids[start : start + count - 1] = input_ids[start + 1 : start + count].clone()
        at = start + count - 1 if select_index is None else int(select_index[i])
        input_ids[at] = topk_index.view(-1)[i].to(input_ids.dtype)


def _rows(*tensors: torch.Tensor) -> zip[tuple[int, ...]]:
    return zip(*(tensor.tolist() for tensor in tensors), strict=True)
