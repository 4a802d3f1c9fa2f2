"""What a DDTREE server refuses at start, because it is not supported or not verified yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sglang_ddtree.budget_schedule import OPTION as SCHEDULE_OPTION
from sglang_ddtree.release import is_v1
from sglang_ddtree.server_args import ddtree_config


class Refusal(NamedTuple):
    """An option that DDTREE refuses: ``applies(cfg)`` on SGLang's view of the arguments.

    ``needs_resolution``: it reads what SGLang fills in (the device, the CUDA graph settings), so it cannot be
    judged from the command line alone.
    """

    applies: Callable[[Any], bool]
    reason: str
    needs_resolution: bool = False


def _chosen(name: str, *allowed: Any) -> Callable[[Any], bool]:
    def applies(cfg: Any) -> bool:
        return getattr(cfg, name, allowed[0]) not in allowed  # what an older release lacks cannot be chosen

    applies.option = name
    return applies


def _on_accelerator(cfg: Any) -> bool:
    return cfg.device != "cpu"


REFUSALS = (
    Refusal(
        lambda cfg: is_v1() and cfg.tp_size > 1,
        "tensor parallelism (--tp-size) is not supported with DDTREE on SGLang 0.5.13; use 1",
    ),
    Refusal(_chosen("pp_size", 1), "pipeline parallelism (--pp-size) is not supported with DDTREE"),
    Refusal(_chosen("attn_dp_size", 1, None), "attention data parallelism is not supported with DDTREE"),
    Refusal(_chosen("disaggregation_mode", "null"), "disaggregated serving is not supported with DDTREE"),
    Refusal(
        _chosen("page_size", 1, None),
        "--page-size above 1 is not supported with DDTREE: accepted KV moves token by token",
    ),
    Refusal(
        lambda cfg: _on_accelerator(cfg) and not cfg.disable_overlap_schedule,
        "overlap scheduling is not verified with DDTREE yet; add --disable-overlap-schedule",
        needs_resolution=True,
    ),
    Refusal(
        lambda cfg: is_v1() and _on_accelerator(cfg) and not decode_graphs_disabled(cfg),
        "CUDA graphs for decode are not supported with DDTREE on SGLang 0.5.13; add --disable-cuda-graph",
        needs_resolution=True,
    ),
    Refusal(_chosen("enable_torch_compile", False), "--enable-torch-compile is not supported with DDTREE"),
    Refusal(_chosen("enable_mixed_chunk", False), "--enable-mixed-chunk is not supported with DDTREE"),
    Refusal(
        _chosen("enable_two_batch_overlap", False), "--enable-two-batch-overlap is not supported with DDTREE"
    ),
    Refusal(_chosen("enable_lora", False, None), "--enable-lora is not verified with DDTREE"),
    Refusal(
        _chosen("enable_deterministic_inference", False),
        "--enable-deterministic-inference is not verified with DDTREE",
    ),
    Refusal(
        _chosen("enable_return_routed_experts", False),
        "--enable-return-routed-experts is not supported with DDTREE",
    ),
    Refusal(
        _chosen("enable_return_indexer_topk", False),
        "--enable-return-indexer-topk is not supported with DDTREE",
    ),
    Refusal(
        lambda _cfg: _simulates_acceptance(),
        "SGLANG_SIMULATE_ACC_LEN is not supported with DDTREE; unset it",
    ),
    Refusal(
        _chosen("speculative_accept_threshold_single", 1.0),
        "--speculative-accept-threshold-single other than 1.0 is not lossless; DDTREE refuses it",
    ),
    Refusal(
        _chosen("speculative_accept_threshold_acc", 1.0),
        "--speculative-accept-threshold-acc other than 1.0 is not lossless; DDTREE refuses it",
    ),
    Refusal(
        _chosen("speculative_use_rejection_sampling", False),
        "--speculative-use-rejection-sampling has no meaning for DDTREE, which draws from the target",
    ),
    Refusal(
        _chosen("speculative_num_steps", 1, None),
        "--speculative-num-steps has no meaning for DDTREE; the draft block sets the depth",
    ),
    Refusal(
        _chosen("speculative_eagle_topk", None),
        "--speculative-eagle-topk has no meaning for DDTREE; use --speculative-ddtree-topk-cap",
    ),
    Refusal(_chosen("speculative_adaptive", False), "--speculative-adaptive is not supported with DDTREE"),
    Refusal(_chosen("speculative_token_map", None), "--speculative-token-map is not supported with DDTREE"),
    Refusal(
        _chosen("speculative_draft_window_size", None),
        "--speculative-draft-window-size is not supported with DDTREE",
    ),
)


def _simulates_acceptance() -> bool:
    from sglang.srt.environ import envs

    return float(envs.SGLANG_SIMULATE_ACC_LEN.get()) > 0


def decode_graphs_disabled(cfg: Any) -> bool:
    if is_v1():
        return bool(cfg.disable_cuda_graph)
    from sglang.srt.model_executor.cuda_graph_config import Backend

    config = cfg.cuda_graph_config
    return bool(cfg.disable_cuda_graph) or (config is not None and config.decode.backend == Backend.DISABLED)


def check_server_args(cfg: Any, *, resolved: bool = True) -> None:
    """Raise ValueError for the first refused option.

    Args:
        cfg: any of SGLang's views of the arguments, or the record as parsed.
        resolved: whether SGLang has filled in the device and the CUDA graph settings.
    """
    for refusal in REFUSALS:
        if (resolved or not refusal.needs_resolution) and refusal.applies(cfg):
            raise ValueError(refusal.reason)


def check_target_model(record: Any) -> bool:
    """Refuse targets whose attention or state DDTREE cannot verify.

    Args:
        record: the ServerArgs record under resolution.

    Returns:
        Whether the target keeps recurrent (Mamba / linear attention) state.

    Raises:
        ValueError: a hybrid target without the unsafe flag or under CUDA graphs, an MLA target, or
            sliding-window attention.
    """
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view, use_mla_backend
    from sglang.srt.configs.hybrid_arch import mambaish_config

    model_config = model_config_of(record)
    is_hybrid = mambaish_config(model_config) is not None
    config = ddtree_config(resolving_view(record))
    if is_hybrid and config.budget_schedule is not None:
        raise ValueError(
            f"{SCHEDULE_OPTION} is not supported with hybrid (Mamba / linear attention) targets: their "
            "states are kept for one verify width"
        )
    if is_hybrid and not config.allow_hybrid_unsafe:
        raise ValueError(
            "the target is a hybrid (Mamba / linear attention) model, which keeps a recurrent state per tree "
            "node; DDTREE refuses it without --speculative-ddtree-allow-hybrid-unsafe"
        )
    if use_mla_backend(record):
        raise ValueError("MLA targets are not verified with DDTREE")
    if model_config.is_hybrid_swa:
        raise ValueError("targets with sliding-window attention are not verified with DDTREE")
    if is_hybrid and _on_accelerator(view := resolving_view(record)) and not decode_graphs_disabled(view):
        raise ValueError(
            "hybrid targets are not verified with DDTREE under CUDA graphs; "
            "add --cuda-graph-backend-decode disabled"
        )
    return is_hybrid
