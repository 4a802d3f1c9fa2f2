"""The DDTREE entry of SGLang 0.5.13's algorithm registry."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree import hooks
from sglang_ddtree.budget_schedule import OPTION as SCHEDULE_OPTION
from sglang_ddtree.server_args import ALGORITHM, ddtree_config, validate_flags
from sglang_ddtree.server_checks import check_server_args
from sglang_ddtree.spec_registry import add_predicate, write_widths


class DDTreeAlgorithm(CustomSpecAlgo):
    """DDTREE, dispatched as a DFLASH whose verify window is a tree."""

    def is_ddtree(self) -> bool:
        return True

    def is_dflash(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def create_future_map(self, *args: Any, **kwargs: Any) -> Any:
        """``CustomSpecAlgo`` lacks it, and the scheduler calls it."""
        return SpeculativeAlgorithm.create_future_map(self, *args, **kwargs)


def validate_server_args(server_args: Any) -> None:
    """SGLang calls this while it resolves the arguments: refuse what cannot work, write the widths.

    Raises:
        ValueError: with one line that names the option.
    """
    validate_flags(server_args)
    server_args.disable_overlap_schedule = True  # as DFLASH's: the V1 worker is synchronous
    check_server_args(server_args)
    check_target_model(server_args)
    config = ddtree_config(server_args)
    if config.budget_schedule is not None:
        raise ValueError(f"{SCHEDULE_OPTION} is not supported with DDTREE on SGLang 0.5.13")
    write_widths(server_args, topk=1)


def check_target_model(server_args: Any) -> None:
    """Refuse targets whose attention DDTREE cannot verify; the worker refuses those with recurrent state.

    Raises:
        ValueError: an MLA or sliding-window target.
    """
    model_config = server_args.get_model_config()
    if server_args.use_mla_backend():
        raise ValueError("MLA targets are not verified with DDTREE")
    if model_config.is_hybrid_swa:
        raise ValueError("targets with sliding-window attention are not verified with DDTREE")


def register_algorithm() -> None:
    """Add DDTREE to the registry, and ``is_ddtree()`` to every algorithm."""
    add_predicate()

    @SpeculativeAlgorithm.register(
        ALGORITHM,
        supports_overlap=False,
        validate_server_args=validate_server_args,
        spec_class=DDTreeAlgorithm,
    )
    def create_ddtree_worker(_server_args: Any) -> type:
        hooks.install(hooks.WORKER_HOOKS)  # before the worker's module binds what they wrap
        from sglang_ddtree.v1.worker import DDTreeWorker

        return DDTreeWorker
