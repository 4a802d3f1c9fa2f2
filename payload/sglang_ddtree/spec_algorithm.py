"""The DDTREE entry of SGLang's algorithm registry."""

from __future__ import annotations

from typing import Any

from sglang.srt.arg_groups.overrides import attention_backends_of, resolving_view
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree import hooks
from sglang_ddtree.server_args import ALGORITHM, is_ddtree, validate_flags
from sglang_ddtree.server_checks import check_server_args, check_target_model
from sglang_ddtree.spec_registry import add_predicate, write_widths

# Backends of hybrid models read the tree links only above 1; the value means nothing else to DDTREE.
HYBRID_TOPK = 4
_IS_HYBRID = "_speculative_ddtree_is_hybrid"  # bookkeeping name on a ServerArgs record


class DDTreeAlgorithm(CustomSpecAlgo):
    """DDTREE, dispatched as a DFLASH whose verify window is a tree.

    ``CustomSpecAlgo`` lacks four methods of ``SpeculativeAlgorithm`` that the scheduler calls; they are
    the last four here.
    """

    def is_ddtree(self) -> bool:
        return True

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def handle_server_args(self, server_args: Any) -> None:
        """Write the widths: nodes for the target, block for the draft (on SGLang's recording view)."""
        is_hybrid = getattr(server_args, _IS_HYBRID, None)
        if is_hybrid is None:
            raise ValueError(
                "DDTREE's argument checks did not run: the plugin's resolution hook is not in place"
            )
        write_widths(server_args, topk=HYBRID_TOPK if is_hybrid else 1)
        if server_args.speculative_draft_attention_backend is None:
            server_args.speculative_draft_attention_backend = attention_backends_of(server_args)[0]
        if server_args.device == "cpu":
            server_args.disable_overlap_schedule = True

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        from sglang.srt.runtime_context import get_spec

        return int(get_spec().speculative_dflash_block_size) if is_draft_worker else num_draft_tokens

    def carries_draft_hidden_states(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def get_platform_worker_cls(self) -> type | None:
        return None

    def create_future_map(self, *args: Any, **kwargs: Any) -> Any:
        return SpeculativeAlgorithm.create_future_map(self, *args, **kwargs)


def register_algorithm() -> None:
    """Add DDTREE to the registry, and ``is_ddtree()`` to every algorithm."""
    add_predicate()

    @SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=DDTreeAlgorithm)
    def create_ddtree_worker(_server_args: Any) -> type:
        hooks.install(hooks.WORKER_HOOKS)  # before the worker's module binds what they wrap
        from sglang_ddtree.ddtree_worker import DDTreeWorker

        return DDTreeWorker


def resolve_speculative_decoding(server_args: Any, previous: Any) -> None:
    """Resolution hook around SGLang's ``handle_speculative_decoding``: DDTREE's checks come first."""
    cfg = resolving_view(server_args)
    validate_flags(cfg)
    if is_ddtree(cfg):
        check_server_args(cfg)
        setattr(server_args, _IS_HYBRID, check_target_model(server_args))
    previous(server_args)
