"""What travels with a DDTREE batch: draft state between steps, and the tree of one verify."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.spec_info import SpecInputType

from sglang_ddtree.spec_input_type import add_spec_input_type

DDTREE_VERIFY: SpecInputType = add_spec_input_type("DDTREE_VERIFY")


@dataclass
class DDTreeDraftInput(DFlashDraftInputV2):
    """Draft state carried from step to step: the last bonus token and the committed length.

    The draft itself is DFlash's, so this is DFlash's state under a name of its own.
    """

    def prepare_for_decode(self, batch) -> None:
        """Reserve KV slots for one tree, never less than the draft block.

        DFLASH reserves ``2 * speculative_num_draft_tokens``, the second half for the lag of overlap
        scheduling, which DDTREE refuses. A row of ``req_to_token`` has room for only one beyond the context
        (``get_req_to_token_extra_context_len``): twice the tree runs over its end in a request's last steps.
        """
        spec = get_spec()
        with spec.override(speculative_num_draft_tokens=(spec.speculative_num_draft_tokens + 1) // 2):
            super().prepare_for_decode(batch)


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):
    """One TARGET_VERIFY forward over ``bs`` padded trees of ``draft_token_num`` nodes each.

    Attributes, beyond :class:`DFlashVerifyInput` (``draft_token`` and ``positions`` are ``[bs * N]`` int64,
    ``custom_mask`` a flat bool allow-mask in the layout of the target's attention backend):
        retrieve_index: ``[bs, N]`` int64, batch-wide node index, ``-1`` for padding.
        retrieve_next_token: ``[bs, N]`` int64, first child within the request, ``-1`` for none.
        retrieve_next_sibling: ``[bs, N]`` int64, next sibling within the request, ``-1`` for none.
        parents: ``[bs, N]`` int64, ``-1`` for the root and padding; None unless the trees are on the device.
        max_depth: drafts on the longest path that a tree can have.
    """

    retrieve_index: torch.Tensor | None = None
    retrieve_next_token: torch.Tensor | None = None
    retrieve_next_sibling: torch.Tensor | None = None
    parents: torch.Tensor | None = None
    max_depth: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec_input_type = DDTREE_VERIFY

    def is_verify_input(self) -> bool:
        return True

    @property
    def tree_topk(self) -> int:
        """-1: irregular branching (backends read "anything but 1" as "use the tree mask")."""
        return -1

    @property
    def max_tree_depth(self) -> int:
        return self.max_depth

    def generate_attn_arg_prefill(self, **kwargs):
        """CSR verify arguments, as DFLASH's, with the tree mask as it is.

        DFLASH would pad the mask to ``paged_kernel_lens_sum``, a host bound that already includes the
        verify window here; the mask is exact, and the kernels index it by request.
        """
        mask, self.custom_mask = self.custom_mask, None
        try:
            kv_indices, kv_indptr, qo_indptr, _ = super().generate_attn_arg_prefill(**kwargs)
        finally:
            self.custom_mask = mask
        return kv_indices, kv_indptr, qo_indptr, mask
