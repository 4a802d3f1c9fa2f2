"""The entry point that SGLang calls in every process: ``sglang.srt.plugins: ddtree``."""

from __future__ import annotations

import logging

from sglang_ddtree.release import is_v1
from sglang_ddtree.versions import UnsupportedSGLangError, check_sglang_version

logger = logging.getLogger(__name__)

_registered = False


def register() -> None:
    """Register the DDTREE algorithm and its flags.

    Nothing changes for a server that does not choose DDTREE.  On an SGLang that was not tested, DDTREE is
    registered only to refuse: SGLang logs the error raised here and goes on.

    Raises:
        UnsupportedSGLangError: this SGLang was not tested.
        HookError: a hook does not fit this SGLang.
    """
    global _registered
    if _registered:
        return
    try:
        check_sglang_version()
    except UnsupportedSGLangError as error:
        _register_refusal(str(error))
        raise

    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.spec_info import SpecInputType  # noqa: F401  (imported before it is extended)

    from sglang_ddtree import hooks
    from sglang_ddtree.server_args import install_flag_attributes
    from sglang_ddtree.spec_input_type import add_spec_input_type

    hooks.install(hooks.LAUNCH_HOOKS)
    install_flag_attributes(ServerArgs)
    add_spec_input_type("DDTREE_VERIFY")
    if is_v1():
        from sglang_ddtree.v1 import algorithm as spec_algorithm
    else:
        from sglang_ddtree import spec_algorithm

        hooks.install_resolution_hook(spec_algorithm.resolve_speculative_decoding)
    spec_algorithm.register_algorithm()
    _registered = True


def _register_refusal(reason: str) -> None:
    """Best effort, on an unknown SGLang: ``--speculative-algorithm DDTREE`` should name the reason."""
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        from sglang_ddtree import server_args, spec_registry

        spec_registry.register_refusal(reason)
        HookRegistry.register(
            "sglang.srt.server_args.ServerArgs.add_cli_args", server_args.add_cli_args, HookType.AFTER
        )
    except Exception:
        logger.warning("DDTREE could not register its refusal on this SGLang", exc_info=True)
