"""Every place where SGLang is wrapped, with the signature that it must have.

SGLang only logs a plugin or a hook that fails, and goes on without it; a DDTREE worker without its hooks
would serve wrong results in silence.  So each hook asserts its target's signature when it is installed, and
the worker asserts at start that all of them are in place.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree import cuda_graphs, server_args
from sglang_ddtree.release import is_v1
from sglang_ddtree.request_checks import validate_dflash_request

RESOLUTION_STEP = "handle_speculative_decoding"


class HookError(RuntimeError):
    """A hook does not fit its target, or is not in place."""


class Hook(NamedTuple):
    """A wrapper around one SGLang function. ``parameters`` are the target's parameter names, in order."""

    target: str
    function: Callable[..., Any]
    kind: HookType
    parameters: tuple[str, ...]


def spec_need_hidden_states(original: Callable[[], bool]) -> bool:
    """AROUND hook: SGLang compares names; DDTREE, like DFLASH, relays no hidden states."""
    from sglang.srt.runtime_context import get_spec

    return False if get_spec().speculative_algorithm == server_args.ALGORITHM else original()


# In every process that loads plugins: the flags.
LAUNCH_HOOKS = (
    Hook(
        "sglang.srt.server_args.ServerArgs.add_cli_args",
        server_args.add_cli_args,
        HookType.AFTER,
        ("parser",),
    ),
    Hook(
        "sglang.srt.server_args.ServerArgs.from_cli_args",
        server_args.from_cli_args,
        HookType.AROUND,
        ("cls", "args"),
    ),
)
# In the scheduler of a DDTREE server only.
WORKER_HOOKS: tuple[Hook, ...]
if is_v1():
    WORKER_HOOKS = (
        Hook(
            "sglang.srt.speculative.dflash_utils.validate_dflash_request",
            validate_dflash_request,
            HookType.AFTER,
            ("req",),
        ),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.get_init_info",
            server_args.scheduler_init_info,
            HookType.AFTER,
            ("self",),
        ),
    )
else:
    LAUNCH_HOOKS = (
        *LAUNCH_HOOKS,
        Hook(
            "sglang.srt.server_args.ServerArgs.resolved_dict",
            server_args.resolved_dict,
            HookType.AFTER,
            ("self",),
        ),
    )
    WORKER_HOOKS = (
        Hook(
            "sglang.srt.speculative.dflash_utils.validate_dflash_request",
            validate_dflash_request,
            HookType.AFTER,
            ("req", "enable_overlap"),
        ),
        Hook(
            "sglang.srt.speculative.spec_utils.spec_need_hidden_states",
            spec_need_hidden_states,
            HookType.AROUND,
            (),
        ),
        Hook(
            "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.get_spec_info",
            cuda_graphs.get_spec_info,
            HookType.AROUND,
            ("self", "num_tokens"),
        ),
        Hook(
            "sglang.srt.model_executor.runner.base_runner.create_dummy_verify_input",
            cuda_graphs.create_dummy_verify_input,
            HookType.AROUND,
            ("spec_algorithm", "custom_mask", "num_tokens_per_req", "is_draft_worker"),
        ),
    )


def install(hooks: Iterable[Hook]) -> None:
    """Register and apply ``hooks``; those already in place are left alone.

    Raises:
        HookError: a target is missing or has another signature, or a hook did not take.
    """
    hooks = [hook for hook in hooks if not is_in_place(hook)]
    for hook in hooks:
        _check_signature(hook)
        HookRegistry.register(hook.target, hook.function, hook.kind)
    HookRegistry.apply_hooks()
    assert_in_place(hooks)


def install_resolution_hook(function: Callable[..., None]) -> None:
    """Let ``function`` run around SGLang's argument checks; 0.5.13 has ``validate_server_args`` for that."""
    from sglang.srt.arg_groups import resolution_hooks

    if function not in resolution_hooks._HOOKS.get(RESOLUTION_STEP, ()):
        resolution_hooks.register_resolution_hook(RESOLUTION_STEP)(function)


def assert_in_place(hooks: Iterable[Hook] = (*LAUNCH_HOOKS, *WORKER_HOOKS)) -> None:
    """Raise HookError naming every hook of ``hooks`` that does not run when its target is called."""
    missing = [hook.target for hook in hooks if not is_in_place(hook)]
    if missing:
        raise HookError(f"DDTREE's hooks are not in place on: {', '.join(missing)}")


def is_in_place(hook: Hook) -> bool:
    """Whether calling the hook's target runs the hook: it is found in the target's chain of wrappers."""
    function = _resolve(hook.target)
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if any(_content(cell) is hook.function for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _resolve(target: str) -> Any:
    try:
        owner_path, name = target.rsplit(".", 1)
        found = inspect.getattr_static(pkgutil.resolve_name(owner_path), name)
    except (ImportError, AttributeError) as error:
        raise HookError(f"DDTREE's hook target {target} does not exist: {error}") from error
    return getattr(found, "__func__", found)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _check_signature(hook: Hook) -> None:
    found = tuple(inspect.signature(_resolve(hook.target)).parameters)
    if found != hook.parameters:
        raise HookError(
            f"DDTREE's hook target {hook.target} takes ({', '.join(found)}); "
            f"the hook was made for ({', '.join(hook.parameters)})"
        )
