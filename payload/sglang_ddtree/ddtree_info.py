"""What travels with a DDTREE batch: draft state between steps, and the tree of one verify."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

from sglang_ddtree.verify_input import TreeVerifyInput


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
class DDTreeVerifyInput(TreeVerifyInput):
    """:class:`TreeVerifyInput`, with what the V2 line's backends ask of a tree.

    Attributes:
        max_depth: drafts on the longest path that a tree can have.
    """

    max_depth: int = 0

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
