"""Which SGLang this is, and what has another name or place from one tested release to the next.

Two lines of SGLang are served.  ``is_v1()``: 0.5.13, whose DFLASH worker (``dflash_worker.py``) is driven
synchronously and whose ``ServerArgs`` is a dataclass; what is made for it is in ``v1/``.  Otherwise the line
of ``dflash_worker_v2.py``, in the other modules.  The tree, the walk, sampling and the checks are shared.
"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager
from typing import Any


def is_v1() -> bool:
    """Whether this SGLang has the V1 worker of DFLASH."""
    return importlib.util.find_spec("sglang.srt.speculative.dflash_worker") is not None


# Modules that import what only one of the lines has.
V1_MODULES = ("v1.commit", "v1.info", "v1.worker")
V2_MODULES = (
    "ddtree_draft",
    "ddtree_info",
    "ddtree_verify",
    "ddtree_worker",
    "spec_algorithm",
    "tree_builder",
)


def belongs_here(module: str) -> bool:
    """Whether ``module``, a name below this package, is for the installed SGLang's line."""
    return module not in (V2_MODULES if is_v1() else V1_MODULES)


def draft_parallel_context(worker: Any) -> AbstractContextManager[Any]:
    """The placement that a V2 worker's draft runs under, as DFLASH's own draft does."""
    from sglang.srt.speculative.spec_utils import draft_tp_context

    if hasattr(worker, "draft_parallel_layout"):  # 0.5.23
        return draft_tp_context(worker.draft_parallel_layout)
    return draft_tp_context(worker.draft_owns_attention)


def keeps_recurrent_states(runner: Any) -> bool:
    """Whether the target of this model runner is a hybrid (Mamba, linear attention)."""
    if is_v1():
        return runner.mambaish_config is not None
    from sglang.srt.configs.hybrid_arch import mambaish_config

    return mambaish_config(runner.model_config) is not None


def logits_processor_of(model: Any) -> Any:
    """The model's own logits processor, which scales and caps its logits; None where it has none, or many."""
    from sglang.srt.layers.logits_processor import LogitsProcessor

    found = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    return found[0] if len(found) == 1 else None
