"""Stand-in for the CPU build of sgl-kernel, in plain torch.

SGLang's CPU branches import their kernels from a package of this name, of which no CPU wheel is published.
Here are those that a dense or hybrid decoder with DFlash or tree speculation uses, with the contracts of
the Triton kernels in ``sglang/kernels/ops``.  They are simple, not fast; one that is missing says so when
it is called.

Not here on purpose: ``convert_weight_packed``.  By its presence SGLang tells that AMX kernels exist.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

from sgl_kernel import mamba
from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]


def _absent(name: str) -> Callable[..., NoReturn]:
    def kernel(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"the sandbox's stand-in for sgl_kernel has no {name}")

    return kernel


def _no_operation(*_args: object) -> None:
    """CPU affinity and the shared-memory all-reduce: nothing to do with one rank."""


_OPERATORS: dict[str, Callable[..., object]] = {
    "extend_attention_cpu": extend_attention_cpu,
    "decode_attention_cpu": decode_attention_cpu,
    "fused_gdn_gating_cpu": mamba.fused_gdn_gating_cpu,
    "fused_sigmoid_gating_delta_rule_update_cpu": mamba.fused_sigmoid_gating_delta_rule_update_cpu,
    "init_cpu_threads_env": _no_operation,
    "initialize": _no_operation,
}
# Bound at the import of models/qwen3_5.py, which the model registry imports with all others.
_BOUND_AT_IMPORT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)

for _name, _operator in _OPERATORS.items():
    setattr(torch.ops.sgl_kernel, _name, _operator)
for _name in _BOUND_AT_IMPORT:
    setattr(torch.ops.sgl_kernel, _name, _absent(_name))
