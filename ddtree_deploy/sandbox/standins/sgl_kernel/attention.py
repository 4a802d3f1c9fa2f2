"""The two attention operators that SGLang's CPU backend (``intel_amx``) calls, in plain torch."""

from __future__ import annotations

import torch


def extend_attention_cpu(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int | None,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Attention of each request's new tokens to its cached prefix and to each other; writes ``out``.

    Args:
        q: ``[tokens, heads, dim]``, all requests' new tokens one after another.
        k, v: the new tokens' own, ``[tokens, kv_heads, dim]``; None where the cache holds them already.
        out: ``[tokens, heads, v_dim]``.
        k_buffer, v_buffer: the cache, ``[slots, kv_heads, dim]``.
        req_to_token: ``[requests, length]``, the slot of each position.
        seq_lens: ``[bs]``, prefix and new tokens together.
        extend_seq_lens, extend_start_loc: ``[bs]``, number and first row of each request's new tokens.
        tree_mask: bool, the requests' ``[n, n]`` masks among new tokens, flat and one after another
            (``QLEN_ONLY``); the prefix is seen by all.  None: causal.
    """
    _refuse(is_cross_attn, sinks)
    offset = 0
    lengths = (req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc)
    for row, total, new, start in zip(*(values.tolist() for values in lengths), strict=True):
        prefix, end = total - new, start + new
        slots = req_to_token[row, :total].long()
        keys, values = k_buffer[slots], v_buffer[slots]
        if k is not None and v is not None:
            keys = torch.cat((keys[:prefix], k.view(-1, *keys.shape[1:])[start:end].to(keys.dtype)))
            values = torch.cat((values[:prefix], v.view(-1, *values.shape[1:])[start:end].to(values.dtype)))
        mask = None
        if tree_mask is not None:
            mask = torch.ones((new, total), dtype=torch.bool)
            mask[:, prefix:] = tree_mask.view(-1)[offset : offset + new * new].view(new, new).bool()
            offset += new * new
        elif is_causal:
            mask = _causal(prefix, total, sliding_window)
        out[start:end] = _attend(q[start:end], keys, values, sm_scale, logit_cap, mask).to(out.dtype)


def decode_attention_cpu(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    out: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attention of one new token a request; stores its ``k`` and ``v`` at ``loc`` first, writes ``out``."""
    _refuse(is_cross_attn, sinks)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for i, (row, total) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        first = max(0, total - sliding_window) if sliding_window > 0 else 0
        slots = req_to_token[row, first:total].long()
        result = _attend(q[i : i + 1], k_buffer[slots], v_buffer[slots], sm_scale, logit_cap, None)
        out[i : i + 1] = result.to(out.dtype)


def _causal(prefix: int, total: int, sliding_window: int) -> torch.Tensor:
    queries = torch.arange(prefix, total)[:, None]
    keys = torch.arange(total)[None]
    mask = keys <= queries
    if sliding_window > 0:
        mask &= keys > queries - sliding_window
    return mask


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    logit_cap: float,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Grouped-query attention in float32: q ``[t, h, d]``, k and v ``[s, kv_h, d]``, mask ``[t, s]`` bool."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (x.transpose(0, 1).float() for x in (q, k, v))
    if groups > 1:
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = torch.matmul(q, k.transpose(1, 2)) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v).transpose(0, 1)


def _refuse(is_cross_attn: bool, sinks: torch.Tensor | None) -> None:
    if is_cross_attn or sinks is not None:
        raise NotImplementedError("the sandbox's attention has neither cross-attention nor sinks")
