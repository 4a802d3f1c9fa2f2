"""The same for SGLang 0.5.13, whose DFLASH worker is of the V1 line and asks no platform what it can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BACKEND = "cpu_tree"
# The V1 worker lets its draft have a few backends only, and takes this one for any other; no CPU has it.
DRAFT_BACKEND = "flashinfer"


def register() -> None:
    """Add ``cpu_tree``, and replace what has no branch for the CPU."""
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if BACKEND not in server_args.ATTENTION_BACKEND_CHOICES:
        server_args.add_attention_backend_choices([BACKEND])
    for name in (BACKEND, DRAFT_BACKEND):
        register_attention_backend(name)(_make_backend)
    for target, function, kind in (
        ("utils.common.support_triton", _no_triton, HookType.REPLACE),
        (
            "speculative.triton_ops.cache_locs.assign_req_to_token_pool_func",
            assign_req_to_token_pool_func,
            HookType.REPLACE,
        ),
        ("speculative.eagle_utils.verify_tree_greedy_func", verify_tree_greedy_func, HookType.REPLACE),
        ("mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup", _no_kv_copy, HookType.REPLACE),
        ("model_executor.model_runner.ModelRunner.forward_extend", _keep_dtype, HookType.AROUND),
    ):
        HookRegistry.register(f"sglang.srt.{target}", function, kind)


def assign_req_to_token_pool_func(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Write the slots ``out_cache_loc``, request after request, to positions start to end of the table."""
    from sgl_kernel import assign_req_to_token_pool_cpu

    assign_req_to_token_pool_cpu(
        req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, req_to_token.shape[1]
    )


def verify_tree_greedy_func(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    topk: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Follow the target's choices down each tree; SGLang 0.5.13 does nothing here on a CPU."""
    from sgl_kernel import verify_tree_greedy_cpu

    verify_tree_greedy_cpu(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        target_predict,
    )
    return predicts, accept_index, accept_token_num


def _no_triton(backend: str) -> bool:
    return False


def _no_kv_copy(pool: Any) -> None:
    """Nothing to warm up: the kernel that moves KV needs a GPU, and the V1 worker moves none."""
    pool._kv_copy_config = None


class _SameDtype:
    """Embeddings that stay what they are where SGLang casts those of a draft block to bfloat16."""

    def __init__(self, embeddings: torch.Tensor) -> None:
        self._embeddings = embeddings

    def bfloat16(self) -> torch.Tensor:
        return self._embeddings


def _keep_dtype(
    original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    embeddings = forward_batch.input_embeds
    if embeddings is None:
        return original(runner, forward_batch, *args, **kwargs)
    forward_batch.input_embeds = _SameDtype(embeddings)
    try:
        return original(runner, forward_batch, *args, **kwargs)
    finally:
        forward_batch.input_embeds = embeddings


def _make_backend(runner: Any) -> Any:
    from sglang_cpu_sandbox.v1_backend import CpuTreeAttnBackend

    return CpuTreeAttnBackend(runner)
