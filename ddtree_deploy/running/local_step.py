"""The first gate, on the controller: what is about to be sent compiles and is what it says it is. Pure."""

from __future__ import annotations

import hashlib
import sys
import warnings

from ddtree_deploy.inputs.payload import Payload, Variant


def check(payload: Payload, variant: Variant, host_python: list[int]) -> tuple[str, str]:
    """(verdict, reason) for one variant: pass, fail or skipped. Nothing of the payload is imported.

    Args:
        host_python: version of the host's Python, at least [major, minor]. Its syntax decides in the end,
            in the step `compile`; ours can stand in for it only where ours is not older.
    """
    for item in variant.items:
        if item.content is not None and hashlib.sha256(item.content).hexdigest() != item.sha256:
            return "fail", f"{item.ref}: the content does not have the digest of the plan"
    if tuple(host_python[:2]) > sys.version_info[:2]:
        ours, theirs = f"{sys.version_info[0]}.{sys.version_info[1]}", ".".join(map(str, host_python[:2]))
        return (
            "skipped",
            f"the host's Python is {theirs}, newer than {ours} here; the host compiles it itself",
        )
    sources = {item.origin or item.ref: item.content for item in variant.items}
    sources.update({c.script: c.data for c in payload.checks})
    count = 0
    for name, data in sorted(sources.items()):
        if not name.endswith(".py") or data is None:
            continue
        count += 1
        problem = syntax_problem(name, data)
        if problem:
            return "fail", problem
    return "pass", f"{count} files compile, {len(variant.items)} digests match"


def syntax_problem(name: str, data: bytes) -> str:
    """`FILE:LINE: what is wrong`, or "" for a source that compiles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{name}:{error.lineno or 1}: {error.msg}"
    except (ValueError, MemoryError, RecursionError) as error:  # the last two: nested too deeply
        return f"{name}:1: {error or type(error).__name__}"
    return ""
