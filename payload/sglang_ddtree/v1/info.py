"""What travels with a DDTREE batch on SGLang 0.5.13: the state between steps is DFLASH's own."""

from sglang.srt.speculative.dflash_info import DFlashDraftInput as DDTreeDraftInput

from sglang_ddtree.verify_input import TreeVerifyInput as DDTreeVerifyInput

__all__ = ["DDTreeDraftInput", "DDTreeVerifyInput"]
