"""The `local` step: the payload compiles with the controller's Python, before anything is sent."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .payload import Payload, Variant


@dataclass(frozen=True)
class LocalVerdict:
    """pass, fail or skipped, with the reason for people (`FILE:LINE: message` of the first failure)."""

    verdict: str
    reason: str


def check(
    payload: Payload,
    variant: Variant,
    host_python: Sequence[int],
    own_python: Sequence[int] = tuple(sys.version_info[:2]),
) -> LocalVerdict:
    """Compile all Python files of the variant and of the checks, in memory; nothing is imported or written.

    host_python, own_python: (major, minor, ...). Skipped where the host's is newer: it may know more syntax.
    Files that patches make exist on the host only, and are compiled there.
    """
    host, own = tuple(host_python[:2]), tuple(own_python[:2])
    if host > own:
        newer, older = ".".join(map(str, host)), ".".join(map(str, own))
        return LocalVerdict("skipped", f"the host's Python {newer} is newer than this one, {older}")
    sources = {item.origin: item.data for item in variant.items if item.kind == "file" and item.origin}
    sources.update({check.script: check.data for check in payload.checks})
    problems = compile_all({name: data for name, data in sources.items() if name.endswith(".py")})
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return LocalVerdict("fail", f"{payload.folder}/{problems[0]}{more}")
    count = sum(name.endswith(".py") for name in sources)
    return LocalVerdict("pass", f"{count} files compile")


def compile_all(sources: Mapping[str, bytes]) -> list[str]:
    """`NAME:LINE: message` for each source that is not valid Python, sorted by name."""
    problems = []
    for name in sorted(sources):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(sources[name], name, "exec", dont_inherit=True)
        except SyntaxError as exc:
            place = f"{name}:{exc.lineno}" if exc.lineno else name
            problems.append(f"{place}: {exc.msg}")
        except (ValueError, RecursionError, MemoryError) as exc:  # null bytes; nested too deeply
            problems.append(f"{name}: {exc or type(exc).__name__}")
    return problems
