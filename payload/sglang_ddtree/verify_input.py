"""The trees of one verify forward, as both lines of SGLang's DFLASH carry them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.spec_info import SpecInputType

from sglang_ddtree.spec_input_type import add_spec_input_type

DDTREE_VERIFY: SpecInputType = add_spec_input_type("DDTREE_VERIFY")


@dataclass
class TreeVerifyInput(DFlashVerifyInput):
    """One TARGET_VERIFY forward over ``bs`` padded trees of ``N = draft_token_num`` nodes each.

    Attributes, beyond :class:`DFlashVerifyInput` (``draft_token`` and ``positions`` are ``[bs * N]`` int64,
    ``custom_mask`` a flat bool allow-mask in the layout of the target's attention backend):
        retrieve_index: ``[bs, N]`` int64, batch-wide node index, ``-1`` for padding.
        retrieve_next_token: ``[bs, N]`` int64, first child within the request, ``-1`` for none.
        retrieve_next_sibling: ``[bs, N]`` int64, next sibling within the request, ``-1`` for none.
        parents: ``[bs, N]`` int64, ``-1`` for the root and padding; None unless the trees are on the device.
    """

    retrieve_index: torch.Tensor | None = None
    retrieve_next_token: torch.Tensor | None = None
    retrieve_next_sibling: torch.Tensor | None = None
    parents: torch.Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec_input_type = DDTREE_VERIFY

    def is_verify_input(self) -> bool:
        return True
