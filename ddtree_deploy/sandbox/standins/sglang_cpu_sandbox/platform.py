"""SGLang's checks of the platform, for algorithms of the DFlash family on a CPU.

The checks know CUDA, NPU and XPU, and ask an out-of-tree platform what it can do.  While they run, the CPU
platform answers as such a one; everywhere else it stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups import speculative_hook
from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES

BACKEND = "cpu_tree"


class SpeculatingCpu:
    """The CPU platform with answers to the four questions about speculation; the rest is passed on."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def is_out_of_tree(self) -> bool:
        return True

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return True

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return backend in (BACKEND, "triton") and backend in DRAFT_ATTENTION_BACKEND_CHOICES

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return BACKEND


def as_speculating_cpu(original: Callable[..., Any], server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """Run one of the checks with the platform answering for the CPU; no overlap scheduling there."""
    real = speculative_hook.current_platform
    if isinstance(real, SpeculatingCpu):
        return original(server_args, *args, **kwargs)
    speculative_hook.current_platform = SpeculatingCpu(real)
    try:
        result = original(server_args, *args, **kwargs)
    finally:
        speculative_hook.current_platform = real
    speculative_hook._disable_overlap_schedule_for_cpu(server_args)
    return result
