"""SGLang's tree constants and greedy walk, from where the installed release keeps them."""

from __future__ import annotations

try:
    from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode, verify_tree_greedy_func  # 0.5.23
except ImportError:
    from sglang.srt.speculative.eagle_utils import TreeMaskMode, verify_tree_greedy_func

__all__ = ["TreeMaskMode", "verify_tree_greedy_func"]
