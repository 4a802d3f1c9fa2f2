"""Commit of the accepted step's state in a hybrid model: SGLang's kernel for it is CUDA and XPU only."""

from __future__ import annotations

from typing import Any

import torch


def scatter_mamba_states_after_mtp_verify(
    mamba_caches: Any,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None,
    mamba_steps_to_track: torch.Tensor | None,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """Copy each request's state after its last accepted node to its cache slot, and to its track slot.

    Args:
        mamba_caches: ``temporal`` and each of ``conv``: ``[layers, slots, ...]``; ``intermediate_ssm`` and
            each of ``intermediate_conv_window``: ``[layers, requests, nodes, ...]``.
        state_indices_tensor, last_correct_step_indices: ``[bs]``, slot and node; a negative node: no copy.
        mamba_track_indices, mamba_steps_to_track: the same for the tracked states.
        src_indices_raw: ``[bs]``, row of each request in the intermediate states; None: its own number.
    """
    windows = zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True)
    pairs = [(mamba_caches.temporal, mamba_caches.intermediate_ssm), *windows]
    for target, source in pairs:
        if target.numel() == 0:
            continue
        _scatter(target, source, state_indices_tensor, last_correct_step_indices, src_indices_raw)
        if mamba_track_indices is not None and mamba_steps_to_track is not None:
            _scatter(target, source, mamba_track_indices, mamba_steps_to_track, src_indices_raw)


def _scatter(
    target: torch.Tensor,
    source: torch.Tensor,
    slots: torch.Tensor,
    nodes: torch.Tensor,
    rows: torch.Tensor | None,
) -> None:
    for i, (slot, node) in enumerate(zip(slots.tolist(), nodes.tolist(), strict=True)):
        if node >= 0:
            row = i if rows is None else int(rows[i])
            target[:, slot] = source[:, row, node].to(target.dtype)
