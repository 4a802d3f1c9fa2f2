"""The tree mask in the layout that the target's attention backend reads."""

from __future__ import annotations

from typing import Any

import torch

from sglang_ddtree.spec_tree import TreeMaskMode

# By class, so that a backend's subclasses count as the backend.
_LAYOUT_OF_BACKEND = {
    "IntelAMXAttnBackend": TreeMaskMode.QLEN_ONLY,
    "TritonAttnBackend": TreeMaskMode.FULL_MASK,
    "FlashInferAttnBackend": TreeMaskMode.FULL_MASK,
}


class UnsupportedAttentionBackendError(RuntimeError):
    """The target's attention backend takes no tree mask that we know of."""


def tree_mask_layout(attn_backend: Any) -> TreeMaskMode:
    """The mask layout of a target attention backend (for a hybrid model: of its full-attention part).

    Raises:
        UnsupportedAttentionBackendError: the backend is not known to take a bool tree mask.
    """
    backend = getattr(attn_backend, "full_attn_backend", attn_backend)
    for cls in type(backend).__mro__:
        if cls.__name__ in _LAYOUT_OF_BACKEND:
            return _LAYOUT_OF_BACKEND[cls.__name__]
    raise UnsupportedAttentionBackendError(
        f"DDTREE verify needs an attention backend with a tree mask; {type(backend).__name__} is not one of "
        f"{', '.join(sorted(_LAYOUT_OF_BACKEND))}"
    )


def flatten_tree_mask(
    visibility: torch.Tensor, prefix_lens_cpu: torch.Tensor, layout: TreeMaskMode
) -> torch.Tensor:
    """Lay out the masks of a batch.

    Args:
        visibility: ``[bs, N, N]`` bool, node attends to node.
        prefix_lens_cpu: ``[bs]`` committed lengths; only FULL_MASK reads them.
        layout: QLEN_ONLY is the ``[N, N]`` blocks; FULL_MASK puts ``prefix`` visible columns before each.

    Returns:
        Flat bool tensor, requests one after another, row-major.
    """
    if layout == TreeMaskMode.QLEN_ONLY:
        return visibility.reshape(-1)
    if layout != TreeMaskMode.FULL_MASK:
        raise NotImplementedError(f"tree mask layout {layout!r}")
    prefix_lens = prefix_lens_cpu.tolist()
    nodes = visibility.shape[1]
    mask = torch.ones(
        nodes * (sum(prefix_lens) + nodes * len(prefix_lens)), dtype=torch.bool, device=visibility.device
    )
    offset = 0
    for block, prefix in zip(visibility, prefix_lens, strict=True):
        rows = mask[offset : offset + nodes * (prefix + nodes)].view(nodes, prefix + nodes)
        rows[:, prefix:] = block
        offset += rows.numel()
    return mask
