"""The attention backend ``cpu_tree`` on SGLang 0.5.13, whose own CPU backend knows no verify pass."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class CpuTreeAttnBackend(IntelAMXAttnBackend):
    """``intel_amx`` with the verify pass of chains and trees, and the draft's block that is not causal.

    ``custom_mask`` of a verify input: bool, flat, either ``[n, n]`` a request (QLEN_ONLY) or
    ``[n, prefix + n]`` (FULL_MASK); without one the new tokens are a chain, and see each other causally.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        # The stand-ins are of a later release, which gives the scales of a quantized cache as well.
        self.extend_attention_fwd = self._extend_without_scales
        self.decode_attention_fwd = self._decode_without_scales

    def _extend_without_scales(self, *arguments: Any) -> None:
        torch.ops.sgl_kernel.extend_attention_cpu(*arguments[:6], 1.0, 1.0, *arguments[6:])

    def _decode_without_scales(self, *arguments: Any) -> None:
        torch.ops.sgl_kernel.decode_attention_cpu(*arguments[:3], 1.0, 1.0, *arguments[3:])

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if forward_batch.forward_mode.is_target_verify():
            self.forward_metadata = (None, forward_batch.spec_info.draft_token_num)
        else:
            super().init_forward_metadata(forward_batch)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> Any:
        if not forward_batch.forward_mode.is_target_verify():
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache, sinks)
        if save_kv_cache:
            self.token_to_kv_pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        nodes = forward_batch.spec_info.draft_token_num
        count = forward_batch.batch_size
        causal = layer.attn_type != AttentionType.ENCODER_ONLY
        out = q.new_empty((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
        self.extend_attention_fwd(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            None,
            None,
            out.view(-1, layer.tp_q_head_num, layer.v_head_dim),
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self.req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices,
            forward_batch.seq_lens + nodes,
            torch.full((count,), nodes),
            torch.arange(count) * nodes,
            nodes,
            layer.scaling,
            layer.logit_cap,
            layer.is_cross_attention,
            layer.sliding_window_size + 1,
            forward_batch.encoder_lens,
            sinks,
            _among_new_tokens(forward_batch, nodes) if causal else None,
            causal,
        )
        return out


def _among_new_tokens(forward_batch: ForwardBatch, nodes: int) -> torch.Tensor | None:
    """The verify input's mask without the prefix's columns: flat, ``[nodes, nodes]`` a request."""
    mask = forward_batch.spec_info.custom_mask
    count = forward_batch.batch_size
    if mask is None or mask.numel() == count * nodes * nodes:
        return mask
    prefixes = forward_batch.seq_lens.tolist()
    sizes = [nodes * (prefix + nodes) for prefix in prefixes]
    if mask.numel() != sum(sizes):
        raise ValueError(f"cpu_tree takes a mask of {sum(sizes)} elements here, not one of {mask.numel()}")
    blocks = [rows.view(nodes, -1)[:, -nodes:].reshape(-1) for rows in mask.split(sizes)]
    return torch.cat(blocks)
