"""The SGLang releases that this plugin was tested against; any other is refused.

SGLang's speculative internals move between patch releases, and a hook that no longer fits can make
verify run under the wrong mask without an error.
"""

from __future__ import annotations

from importlib import metadata

TESTED_SGLANG_VERSIONS = ("0.5.23", "0.5.22", "0.5.13")


class UnsupportedSGLangError(RuntimeError):
    """The installed SGLang is not one that this plugin was tested with."""


def check_sglang_version() -> str:
    """Return the installed SGLang version.

    Raises:
        UnsupportedSGLangError: it was not tested; the text names the version found and those tested.
    """
    found = metadata.version("sglang")
    if found not in TESTED_SGLANG_VERSIONS:
        raise UnsupportedSGLangError(
            f"DDTREE was tested with SGLang {', '.join(TESTED_SGLANG_VERSIONS)} only; found {found}"
        )
    return found
