"""What every DDTREE entry of SGLang's algorithm registry needs, whatever the release."""

from __future__ import annotations

import json
import logging
from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree.server_args import ALGORITHM, ddtree_config

logger = logging.getLogger(__name__)

DEFAULT_MAX_RUNNING_REQUESTS = 48  # DFLASH's


class RefusedDDTreeAlgorithm(CustomSpecAlgo):
    """DDTREE on an SGLang that it was not tested with: choosing it fails with the reason.

    Releases differ in what they call: ``handle_server_args`` is a method in newer ones, and
    ``validate_server_args`` an attribute that holds a function in older ones.
    """

    reason = ""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.validate_server_args = self.handle_server_args

    def is_ddtree(self) -> bool:
        return True

    def handle_server_args(self, server_args: Any) -> None:
        raise ValueError(self.reason)

    def create_worker(self, server_args: Any) -> type:
        raise ValueError(self.reason)


def register_refusal(reason: str) -> None:
    """Register DDTREE so that choosing it raises ``reason`` instead of "unknown algorithm"."""
    add_predicate()
    spec_class = type("RefusedDDTreeAlgorithm", (RefusedDDTreeAlgorithm,), {"reason": reason})
    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=spec_class)(lambda _args: None)


def add_predicate() -> None:
    """Give ``is_ddtree()`` to every algorithm."""
    # On both: the registry demands of other plugins' classes whatever is_* the enum has.
    for owner in (SpeculativeAlgorithm, CustomSpecAlgo):
        if not hasattr(owner, "is_ddtree"):
            owner.is_ddtree = lambda _self: False


def write_widths(server_args: Any, *, topk: int) -> None:
    """Write what follows from the budget: a tree's nodes for the target, the block for the draft.

    topk: what backends read as ``speculative_eagle_topk``.
    """
    nodes = ddtree_config(server_args).budget + 1
    block = draft_block_size(server_args)
    if block > nodes:
        logger.warning(
            "DDTREE: a tree of %d nodes holds no path of the draft's %d; the block is cut", nodes, block
        )
    server_args.speculative_num_draft_tokens = nodes
    server_args.speculative_dflash_block_size = min(block, nodes)
    server_args.speculative_num_steps = 1
    server_args.speculative_eagle_topk = topk
    if server_args.max_running_requests is None:
        server_args.max_running_requests = DEFAULT_MAX_RUNNING_REQUESTS


def draft_block_size(cfg: Any) -> int:
    """The draft's block size: ``--speculative-dflash-block-size``, else the draft's configuration."""
    if cfg.speculative_dflash_block_size is not None:
        block = int(cfg.speculative_dflash_block_size)
    else:
        from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
        from sglang.srt.utils.hf_transformers_utils import get_config

        draft_config = get_config(
            cfg.speculative_draft_model_path,
            trust_remote_code=cfg.trust_remote_code,
            revision=cfg.speculative_draft_model_revision,
            model_override_args=json.loads(cfg.json_model_override_args),
        )
        resolved = parse_dflash_draft_config(draft_hf_config=draft_config).resolve_block_size(default=None)
        if resolved is None:
            raise ValueError(
                f"the draft model {cfg.speculative_draft_model_path} names no block size; "
                "give --speculative-dflash-block-size"
            )
        block = int(resolved)
    if block < 2:
        raise ValueError(f"DDTREE needs a draft block of at least 2 tokens, got {block}")
    return block
