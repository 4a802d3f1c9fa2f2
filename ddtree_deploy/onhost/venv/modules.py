"""What a process that has loaded our files must say of its modules: digests of compiled code. Pure but for reads.

The runner is the venv's own Python, so what it compiles is what the service compiles. The rules of the digest
are in docs/payload.md ("What it says of itself"); a payload computes the same of what it has really executed.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

LEVELS = (0, 1, 2)  # of optimisation: how the service was started is its own business


def others(files: Mapping[str, Mapping[str, Any]], told: Mapping[str, str]) -> list[str]:
    """What a process has loaded that is not the release's, in words.

    files: of the release, as in installed.json: path -> {ref, sha256}. told: module -> digest.
    """
    paths = {name_of(str(about["ref"])): path for path, about in files.items()}
    found: list[str] = []
    for name, said in sorted(told.items()):
        path = paths.get(name)
        if path is None:
            found.append(f"{name} (not of the release)")
            continue
        try:
            source = Path(path).read_bytes()
        except OSError:
            source = b""
        if hashlib.sha256(source).hexdigest() != files[path]["sha256"]:
            found.append(f"{name} (its file is another by now)")
        elif not any(of_source(source, path, level) == said for level in LEVELS):
            found.append(name)
    return found


def name_of(ref: str) -> str:
    """`site:a/b.py` and `sglang:srt/c.py` as the modules `a.b` and `sglang.srt.c`; "" for what is none."""
    place, _, rel = ref.partition(":")
    if not rel.endswith(".py"):
        return ""
    parts = rel[:-3].split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join([*(["sglang"] if place == "sglang" else []), *parts])


def of_source(source: bytes, path: str, level: int) -> str:
    """Of a module's code at a level of optimisation; "" for what does not compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the service's own log has them
        try:
            return digest(compile(source, path, "exec", dont_inherit=True, optimize=level))
        except (SyntaxError, ValueError):
            return ""


def digest(code: CodeType) -> str:
    """sha256 of what a module's code does: its instructions, names and constants, not its place or its lines."""
    found = hashlib.sha256()
    _feed(code, lambda text: found.update(text.encode("utf-8", "backslashreplace") + b"\0"))
    return found.hexdigest()


def _feed(value: object, add: Callable[[str], None]) -> None:
    if isinstance(value, CodeType):
        add("code")
        for part in (
            value.co_name,
            value.co_argcount,
            value.co_posonlyargcount,
            value.co_kwonlyargcount,
            value.co_flags,
            value.co_code,
            value.co_names,
            value.co_varnames,
            value.co_freevars,
            value.co_cellvars,
            value.co_consts,
            getattr(value, "co_exceptiontable", b""),
        ):
            _feed(part, add)
    elif isinstance(value, tuple):
        add(f"tuple {len(value)}")
        for part in value:
            _feed(part, add)
    elif isinstance(value, frozenset):  # in the order of hashes, which differs from process to process
        add(f"frozenset {sorted(map(repr, value))}")
    else:
        add(f"{type(value).__name__} {value!r}")
