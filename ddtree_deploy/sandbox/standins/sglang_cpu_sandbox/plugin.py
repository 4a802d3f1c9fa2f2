"""Entry point ``cpu_sandbox`` in the group ``sglang.srt.plugins``.

It adds the attention backend ``cpu_tree`` and lets the DFlash family, in the tree or out of it, pass the
checks of the platform.  It changes nothing unless SGLang runs on its CPU engine, and it adds no algorithm.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.utils import is_cpu

    if not is_cpu():
        return
    if find_spec("sglang.srt.speculative.dflash_worker") is not None:
        from sglang_cpu_sandbox import v1

        v1.register()
        return

    from sglang.srt.arg_groups.choices import (
        ATTENTION_BACKEND_CHOICES,
        DRAFT_ATTENTION_BACKEND_CHOICES,
        add_attention_backend_choices,
        add_draft_attention_backend_choices,
    )
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_cpu_sandbox.mamba import scatter_mamba_states_after_mtp_verify
    from sglang_cpu_sandbox.platform import BACKEND, as_speculating_cpu

    if BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([BACKEND])
    if BACKEND not in DRAFT_ATTENTION_BACKEND_CHOICES:
        add_draft_attention_backend_choices([BACKEND])
    register_attention_backend(BACKEND)(_make_backend)

    _record_streams_on_devices_only()
    checks = "sglang.srt.arg_groups.speculative_hook"
    for name in ("_handle_dflash", "_resolve_dflash_draft_attention_backend"):
        HookRegistry.register(f"{checks}.{name}", as_speculating_cpu, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        _keep_dtype_of_input_embeds,
        HookType.AFTER,
    )
    HookRegistry.register(
        "sglang.kernels.ops.mamba.mamba_state_scatter_triton.scatter_mamba_states_after_mtp_verify",
        scatter_mamba_states_after_mtp_verify,
        HookType.REPLACE,
    )


def _record_streams_on_devices_only() -> None:
    """`Tensor.record_stream` fails on a CPU tensor, it has no stream; the DFlash worker always calls it."""
    import torch

    original = torch.Tensor.record_stream
    if getattr(original, "skips_cpu", False):
        return

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        if tensor.device.type != "cpu":
            original(tensor, stream)

    record_stream.skips_cpu = True  # type: ignore[attr-defined]
    torch.Tensor.record_stream = record_stream


def _make_backend(runner: Any) -> Any:
    from sglang_cpu_sandbox.backend import CpuTreeAttnBackend

    return CpuTreeAttnBackend(runner)


def _keep_dtype_of_input_embeds(
    result: dict[str, Any], runner: Any, forward_batch: Any, *_args: Any, **_kwargs: Any
) -> dict[str, Any]:
    # SGLang casts the embeddings that a draft block brings along to bfloat16, whatever --dtype says.
    if forward_batch.input_embeds is not None and "input_embeds" in result:
        result["input_embeds"] = forward_batch.input_embeds
    return result
