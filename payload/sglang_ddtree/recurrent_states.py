"""The recurrent states of a hybrid target (Mamba, GDN), one per tree node: how exact, and how much memory."""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger(__name__)


def state_dtypes(req_to_token_pool: Any) -> set[torch.dtype]:
    """The types that a hybrid target's convolution windows and recurrent states are kept in."""
    cache = req_to_token_pool.get_speculative_mamba2_params_all_layers()
    return {state.dtype for state in (*cache.conv, cache.temporal) if state is not None}


def log_states(req_to_token_pool: Any, nodes: int, model_dtype: torch.dtype) -> None:
    """Log what the budget costs: a state for every node that a request may have.

    SGLang keeps convolution windows in bfloat16 whatever the model computes in.  A model in bfloat16 loses
    nothing by it; a wider one rounds the inputs it carries from step to step, so where a step begins shows in
    the output.  That is said, too.
    """
    cache = req_to_token_pool.get_speculative_mamba2_params_all_layers()
    states = [
        state for state in (cache.intermediate_ssm, *cache.intermediate_conv_window) if state is not None
    ]
    logger.info(
        "DDTREE on a hybrid target: the states of tree nodes take %.1f MiB (%d requests of %d nodes)",
        sum(state.untyped_storage().nbytes() for state in states) / 2**20,
        states[0].shape[1],
        nodes,
    )
    rounded = {dtype for dtype in state_dtypes(req_to_token_pool) if dtype.itemsize < model_dtype.itemsize}
    if rounded:
        logger.warning(
            "DDTREE on a hybrid target: states are kept in %s, the model computes in %s; its output depends "
            "on where steps begin. SGLANG_MAMBA_CONV_DTYPE and SGLANG_MAMBA_SSM_DTYPE set their types",
            ", ".join(sorted(map(str, rounded))),
            model_dtype,
        )
