"""The attention backend ``cpu_tree``: SGLang's own CPU backend, for chains and for trees."""

from __future__ import annotations

import torch
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class CpuTreeAttnBackend(IntelAMXAttnBackend):
    """``intel_amx`` under a name of its own, with any verify input of the DFlash family.

    SGLang replaces ``intel_amx`` by ``torch_native``, which knows no verify pass, where the processor has no
    AMX.  Its two operators come from the ``sgl_kernel`` stand-in and need none.

    A verify input is taken by what it carries: a ``custom_mask``, bool ``[sum(n * n)]`` over the batch
    (``QLEN_ONLY``: new tokens only, the prefix is seen by all), is used as it is; without one the new tokens
    are a chain, and see each other causally.
    """

    def _build_extend_metadata(
        self, forward_batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        spec_info = forward_batch.spec_info
        if not forward_batch.forward_mode.is_target_verify() or spec_info is None:
            return super()._build_extend_metadata(forward_batch)
        batch_size, nodes = forward_batch.batch_size, spec_info.draft_token_num
        starts = torch.arange(batch_size, dtype=torch.int32, device=self.device) * nodes
        mask = getattr(spec_info, "custom_mask", None)
        if mask is not None and mask.numel() == 0:
            mask = None
        if mask is not None and mask.numel() != batch_size * nodes * nodes:
            raise ValueError(
                f"cpu_tree takes a QLEN_ONLY mask of {batch_size} * {nodes} * {nodes} elements, "
                f"not one of {mask.numel()}"
            )
        return forward_batch.seq_lens + nodes, torch.full_like(starts, nodes), starts, mask
