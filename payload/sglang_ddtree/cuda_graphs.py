"""CUDA graphs of the verify forward: captured under a tree mask, at the tree's width.

SGLang captures a DFLASH verify without a mask, which bakes causal attention into the graph.  These hooks give
the target's dummy verify input a mask, so that backends capture their masked kernels and copy each step's
mask into the captured buffer.  The draft's graph stays DFLASH's own, at the draft block's width.

No GPU has run this yet.  It is allowed only because a graph that was captured wrongly cannot serve: the
worker's self-check replays it before the first request, and refuses to start on a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_ddtree.server_args import ALGORITHM


def get_spec_info(original: Callable[..., Any], runner: Any, num_tokens: int) -> Any:
    """AROUND hook on ``DecodeCudaGraphRunner.get_spec_info``: what the graph is captured with."""
    found = original(runner, num_tokens)
    return _with_tree_mask(found, runner.buffers.custom_mask, runner.model_runner.is_draft_worker)


def create_dummy_verify_input(
    original: Callable[..., Any],
    spec_algorithm: Any,
    custom_mask: torch.Tensor,
    num_tokens_per_req: int,
    is_draft_worker: bool,
) -> Any:
    """AROUND hook on ``create_dummy_verify_input``: what kernels are warmed up with."""
    found = original(spec_algorithm, custom_mask, num_tokens_per_req, is_draft_worker)
    return _with_tree_mask(found, custom_mask, is_draft_worker)


def _with_tree_mask(found: Any, custom_mask: torch.Tensor, is_draft_worker: bool) -> Any:
    from sglang.srt.runtime_context import get_spec

    if is_draft_worker or get_spec().speculative_algorithm != ALGORITHM:
        return found
    from sglang_ddtree.ddtree_info import DDTreeVerifyInput

    return DDTreeVerifyInput(
        draft_token=None,
        positions=None,
        draft_token_num=found.draft_token_num,
        custom_mask=custom_mask,
        capture_hidden_mode=found.capture_hidden_mode,
    )
