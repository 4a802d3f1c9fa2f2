"""Draft logits to ranked candidates: the input of every tree builder."""

from __future__ import annotations

import torch


def draft_log_probs(logits: torch.Tensor, vocab_size: int | None = None) -> torch.Tensor:
    """Log-probs over the whole vocabulary, with the rows that softmax cannot express settled.

    - columns from ``vocab_size`` on (the padding of a vocab-parallel head) carry no mass;
    - ``+inf`` logits share all mass equally;
    - a row with a NaN, or without any finite logit, has no candidate: all ``-inf``.

    Args:
        logits: ``[..., V]``, any float dtype.  Half precision is widened to float32.
        vocab_size: real vocabulary size, if ``V`` is padded.

    Returns:
        ``[..., V]`` log-probs, float32 (float64 if given float64).
    """
    logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    if vocab_size is not None and vocab_size < logits.shape[-1]:
        logits = logits[..., :vocab_size]
    certain = logits == torch.inf
    any_certain = certain.any(-1, keepdim=True)
    # With a certain token, only certain tokens count, all alike.
    logits = torch.where(any_certain, torch.where(certain, 0.0, -torch.inf).to(logits.dtype), logits)
    logps = torch.log_softmax(logits, dim=-1)
    return torch.where(logps.isnan().any(-1, keepdim=True), -torch.inf, logps)


def ranked_topk(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`stable_topk`; on an accelerator :func:`device_topk`: the same result without a host sync."""
    return stable_topk(values, k) if values.device.type == "cpu" else device_topk(values, k)


def stable_topk(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.topk`` whose ties go to the lower index, also at the cut.

    Half-precision logits tie often, and ``torch.topk`` leaves the order of ties open; the tree must not
    depend on it.

    Args:
        values: ``[R, V]`` without NaN.
        k: at most ``V``.

    Returns:
        ``(values [R, k], indices [R, k] int64)``, falling values, rising indices within a tie.
    """
    width = values.shape[1]
    if k >= width:
        top, index = values.sort(dim=-1, descending=True, stable=True)
        return top, index
    top, index = values.topk(k + 1, dim=-1)
    cut_tie = (top[:, k - 1] == top[:, k]) & (top[:, k] > -torch.inf)
    top, index = top[:, :k].contiguous(), index[:, :k].contiguous()
    if bool(cut_tie.any()):
        full, order = values[cut_tie].sort(dim=-1, descending=True, stable=True)
        top[cut_tie], index[cut_tie] = full[:, :k], order[:, :k]
    # Sort by index first, then stably by value: ties end up in index order.
    index, order = index.sort(dim=-1)
    top, order = top.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return top, index.gather(-1, order)


def device_topk(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`stable_topk` without a host sync, for accelerators: one ``torch.topk`` of 64-bit keys.

    A key is the value's bits, made monotone, above the index counted down.  Costs 8 bytes an entry.

    Args:
        values: ``[R, V]`` float32 without NaN; float64 falls back to :func:`stable_topk`.
        k: at most ``V``.
    """
    if values.dtype != torch.float32:
        return stable_topk(values, k)
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    index = torch.arange(values.shape[1], device=values.device)
    keys = (ordered << 32) | (0xFFFFFFFF - index)
    chosen = 0xFFFFFFFF - (keys.topk(k, dim=-1).values & 0xFFFFFFFF)
    return values.gather(-1, chosen), chosen
