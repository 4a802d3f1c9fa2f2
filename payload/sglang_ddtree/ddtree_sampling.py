"""The target's own draw at every node of a tree (temperature above 0)."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

GREEDY_TOP_K = 1  # SGLang turns temperature 0 into temperature 1 with top_k 1


def draw_at_nodes(
    sampler: Any,
    logits: torch.Tensor,
    sampling_info: SamplingBatchInfo,
    positions: torch.Tensor,
    num_nodes: int,
) -> torch.Tensor:
    """Draw one token per node with SGLang's sampler, as if each node were a request of its own.

    So temperature, top-k, top-p, min-p and seeds mean what they mean without speculation: a seeded draw
    depends on the seed and the position alone, and comes out as it would token by token.

    Args:
        sampler: the target's ``Sampler``.
        logits: ``[bs * N, V]``; overwritten.
        sampling_info: of the ``bs`` requests.
        positions: ``[bs * N]`` int64 position of each node.
        num_nodes: ``N``.

    Returns:
        ``[bs, N]`` int64 tokens; a greedy request among sampled ones takes its argmax.
    """
    greedy = sampling_info.top_ks == GREEDY_TOP_K
    best = logits.argmax(-1).view(-1, num_nodes) if _is_any_greedy(sampling_info) else None
    draws = sampler(
        LogitsProcessorOutput(next_token_logits=logits),
        per_node(sampling_info, num_nodes),
        return_logprob=False,
        top_logprobs_nums=[],
        token_ids_logprobs=[],
        positions=positions,
    )
    draws = draws.long().view(-1, num_nodes)
    return draws if best is None else torch.where(greedy.unsqueeze(1), best, draws)


def per_node(sampling_info: SamplingBatchInfo, num_nodes: int) -> SamplingBatchInfo:
    """``sampling_info`` with every request's row repeated for its ``num_nodes`` nodes.

    Only what shapes the distribution is kept: bias is in the logits already, and penalties, grammars and
    custom processors are refused per request.
    """

    def repeat(rows: torch.Tensor | None) -> torch.Tensor | None:
        return None if rows is None else rows.repeat_interleave(num_nodes, dim=0)

    newer = {
        "is_any_greedy": _is_any_greedy(sampling_info),
        "max_top_k": getattr(sampling_info, "max_top_k", None),
    }
    return SamplingBatchInfo(
        temperatures=repeat(sampling_info.temperatures),
        top_ps=repeat(sampling_info.top_ps),
        top_ks=repeat(sampling_info.top_ks),
        min_ps=repeat(sampling_info.min_ps),
        is_all_greedy=False,
        need_top_p_sampling=sampling_info.need_top_p_sampling,
        need_top_k_sampling=sampling_info.need_top_k_sampling,
        need_min_p_sampling=sampling_info.need_min_p_sampling,
        vocab_size=sampling_info.vocab_size,
        sampling_seed=repeat(sampling_info.sampling_seed),
        device=sampling_info.device,
        **{name: value for name, value in newer.items() if name in SamplingBatchInfo.__dataclass_fields__},
    )


def _is_any_greedy(sampling_info: SamplingBatchInfo) -> bool:
    """Whether a request of the batch may be greedy; 0.5.13 keeps no record of it."""
    return bool(getattr(sampling_info, "is_any_greedy", True))
