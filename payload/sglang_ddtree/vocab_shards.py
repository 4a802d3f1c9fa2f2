"""Top-k and argmax over a vocabulary that is split over tensor-parallel ranks.

Each rank holds the logits of its own shard of the head.  What the ranks exchange is ``k`` candidates a row,
or one, never the row: every rank then merges the same bytes in the same order, so all build the same tree
and walk it alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from sglang_ddtree.draft_topk import ranked_topk


class VocabShard(NamedTuple):
    """A rank's part of the vocabulary.

    Attributes:
        group: SGLang's ``GroupCoordinator`` of the ranks among which the head is split.
        start: token id of the shard's first column.
        width: columns that are tokens; those behind are padding.
    """

    group: Any
    start: int
    width: int


def vocab_shard(lm_head: Any, tp_group: Any) -> VocabShard | None:
    """The rank's shard of ``lm_head``, or None where every rank holds all of it.

    Raises:
        ValueError: the head has added tokens, whose ids do not follow from a column.
    """
    indices = getattr(lm_head, "shard_indices", None)
    if tp_group.world_size == 1 or indices is None:
        return None
    if indices.num_added_elements:
        raise ValueError("DDTREE does not support a target head with added (LoRA) tokens")
    return VocabShard(tp_group, int(indices.org_vocab_start_index), int(indices.num_org_elements))


def shard_topk(logits: torch.Tensor, shard: VocabShard, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``ranked_topk(draft_log_probs(logits), k)`` of the whole rows, of which each rank has its columns.

    Args:
        logits: ``[R, >= shard.width]`` float32.
        k: at most the vocabulary.

    Returns:
        Log-probs float32 and token ids int64, both ``[R, k]``, the same on every rank.
    """
    logits = logits[:, : shard.width]
    # A row with a NaN is ranked anyhow, but its mass below, a NaN, leaves it without candidates.
    values, ids = ranked_topk(logits, min(k, shard.width))
    mass = torch.logsumexp(logits, dim=-1)  # NaN, +inf and -inf say what the row holds
    certain = (logits == torch.inf).sum(-1).to(logits.dtype)
    rows, own = values.shape
    scores = values.new_full((rows, k + 2), -torch.inf)
    scores[:, :own], scores[:, k], scores[:, k + 1] = values, mass, certain
    tokens = ids.new_zeros((rows, k))
    tokens[:, :own] = ids + shard.start
    scores, tokens = gather_ranks(scores, shard.group), gather_ranks(tokens, shard.group)
    return merge_topk(scores[..., :k], tokens, scores[..., k], scores[..., k + 1])


def merge_topk(
    values: torch.Tensor, ids: torch.Tensor, mass: torch.Tensor, certain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the shards' candidates.

    Args:
        values, ids: ``[T, R, k]`` logits and token ids of ``T`` shards in rising order of ids, each sorted
            as by ``ranked_topk``.
        mass: ``[T, R]`` log-sum-exp of each shard's row.
        certain: ``[T, R]`` number of ``+inf`` logits in it.

    Returns:
        Log-probs and ids ``[R, k]``; rows that softmax cannot express are settled as ``draft_log_probs``
        settles them.
    """
    k = values.shape[-1]
    # Shards in order of ids, and each with its ties in that order: a stable sort keeps it.
    top, order = values.transpose(0, 1).flatten(1).sort(dim=-1, descending=True, stable=True)
    top, order = top[:, :k], order[:, :k]
    tokens = ids.transpose(0, 1).flatten(1).gather(1, order)
    total = torch.logsumexp(mass, dim=0).unsqueeze(1)
    count = certain.sum(0).unsqueeze(1)
    logps = torch.where(
        total == torch.inf, torch.where(top == torch.inf, -count.log(), -torch.inf), top - total
    )
    # A NaN somewhere, or no finite logit at all: no candidate.
    return torch.where(total.isnan() | (total == -torch.inf), -torch.inf, logps), tokens


def shard_argmax(logits: torch.Tensor, shard: VocabShard) -> torch.Tensor:
    """``argmax`` of whole rows, the lowest id of a tie.

    Args:
        logits: ``[R, >= shard.width]``.

    Returns:
        ``[R]`` int64, the same on every rank.
    """
    best, column = logits[:, : shard.width].max(-1)
    best, ids = gather_ranks(best, shard.group), gather_ranks(column + shard.start, shard.group)
    return ids.gather(0, best.argmax(0, keepdim=True)).squeeze(0)


@contextmanager
def logits_left_in_shards(processor: Any, enough: bool) -> Iterator[None]:
    """Within, an eager target forward does not gather its logits over the ranks, where that is ``enough``.

    A graph does what it did when it was captured; whoever reads the logits goes by their width.

    Args:
        processor: the target's logits processor; None where the release lets nobody in.
    """
    if not enough or processor is None:
        yield
        return
    gather = processor.do_tensor_parallel_all_gather
    processor.do_tensor_parallel_all_gather = False
    try:
        yield
    finally:
        processor.do_tensor_parallel_all_gather = gather


def gathered_logits(processor: Any, logits: torch.Tensor) -> torch.Tensor:
    """``[R, V]`` logits over the whole vocabulary; within :func:`logits_left_in_shards`, as they are."""
    if (
        processor is not None
        and processor.do_tensor_parallel_all_gather
        and processor.is_deferred_shard(logits)
    ):
        return processor.finish_deferred_gather(logits)
    return logits


def gather_ranks(rows: torch.Tensor, group: Any) -> torch.Tensor:
    """``[T, *rows.shape]``: the tensor of every rank of ``group``, in rank order."""
    out = rows.new_empty((group.world_size, *rows.shape))
    group.all_gather_into_tensor(out.view(-1, *rows.shape[1:]), rows.contiguous())
    return out
