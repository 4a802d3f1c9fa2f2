"""Gated delta net on the CPU, for hybrid targets such as Qwen3-Next.

The prefill recurrence is plain torch.  The convolution step and the recurrence of a tree verify are
SGLang's own Triton kernels, which need ``TRITON_INTERPRET=1`` on a machine without a GPU.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F


def causal_conv1d_fn_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    conv_states: torch.Tensor | None = None,
    activation: str = "silu",
    **_: object,
) -> torch.Tensor:
    """Depthwise causal convolution of packed sequences; keeps each one's last inputs in ``conv_states``.

    Args:
        x: ``[dim, tokens]``.
        weight: ``[dim, width]``.
        query_start_loc: ``[bs + 1]``, bounds of the sequences in ``x``.
        cache_indices, has_initial_state: ``[bs]``.
        conv_states: ``[slots, dim, width - 1]``.
    """
    assert query_start_loc is not None and cache_indices is not None
    assert has_initial_state is not None and conv_states is not None
    out = torch.empty_like(x)
    keep = weight.shape[1] - 1
    bounds = query_start_loc.tolist()
    for i, (start, end) in enumerate(pairwise(bounds)):
        state = conv_states[int(cache_indices[i])]
        before = state[:, -keep:] if bool(has_initial_state[i]) else torch.zeros_like(state[:, -keep:])
        inputs = torch.cat((before, x[:, start:end]), 1)
        result = F.conv1d(inputs[None], weight[:, None], bias, groups=x.shape[0])[0]
        out[:, start:end] = F.silu(result) if activation in ("silu", "swish") else result
        state[:, -keep:] = inputs[:, -keep:]
    return out


def causal_conv1d_update_cpu(*args: Any, **kwargs: Any) -> Any:
    """One decode or verify step of the convolution, by SGLang's Triton kernel."""
    from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_update

    return causal_conv1d_update(*args, **kwargs)


def chunk_gated_delta_rule_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
) -> tuple[torch.Tensor, None, None]:
    """The recurrence of a prefill, token by token in float32; updates ``initial_state`` in place.

    Args:
        q, k: ``[1, tokens, heads, k_dim]``.
        v: ``[1, tokens, v_heads, v_dim]``.
        g, beta: ``[1, tokens, v_heads]``, log decay and write strength.
        initial_state: ``[slots, v_heads, v_dim, k_dim]``.
    """
    out = torch.empty_like(v)
    repeat = v.shape[2] // k.shape[2]
    scale = k.shape[-1] ** -0.5
    bounds = cu_seqlens.tolist()
    for i, (start, end) in enumerate(pairwise(bounds)):
        slot = int(initial_state_indices[i])
        state = initial_state[slot].float()
        for t in range(start, end):
            key, query = k[0, t].float(), q[0, t].float()
            if use_qk_l2norm_in_kernel:
                key, query = _l2norm(key), _l2norm(query)
            key = key.repeat_interleave(repeat, 0)
            query = query.repeat_interleave(repeat, 0) * scale
            state = state * g[0, t].float().exp()[:, None, None]
            seen = torch.einsum("hvk,hk->hv", state, key)
            delta = (v[0, t].float() - seen) * beta[0, t].float()[:, None]
            state = state + delta[:, :, None] * key[:, None, :]
            out[0, t] = torch.einsum("hvk,hk->hv", state, query).to(out.dtype)
        initial_state[slot] = state.to(initial_state.dtype)
    return out, None, None


def fused_gdn_gating_cpu(
    A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay and write strength, each ``[1, tokens, v_heads]`` float32, from ``a`` and ``b``."""
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return decay.unsqueeze(0), b.float().sigmoid().unsqueeze(0)


def fused_sigmoid_gating_delta_rule_update_cpu(*args: Any, **kwargs: Any) -> Any:
    """A decode or verify step of the recurrence, by SGLang's Triton kernel."""
    try:
        from sglang.kernels.ops.attention.linear import fused_sigmoid_gating_recurrent as kernels
    except ImportError:  # where 0.5.22 has it
        from sglang.kernels.ops.attention.fla import fused_sigmoid_gating_recurrent as kernels
    # Views with gaps on the CPU path without AMX; the kernel computes offsets for dense rows.
    for name in ("a", "b"):
        kwargs[name] = kwargs[name].contiguous()
    return kernels.fused_sigmoid_gating_delta_rule_update(*args, **kwargs)


def _l2norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)
