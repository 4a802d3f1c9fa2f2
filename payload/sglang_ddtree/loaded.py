"""Which code this process has loaded: for each module of the payload a digest of the code that was executed.

Not of the files: by the time somebody asks, other ones may lie there, and even at import Python may run
bytecode that it keeps beside them.  So the code object is digested, at the moment it is executed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

FIELD = "ddtree_modules"  # of ``/server_info``
_digests: dict[str, str] = {}


def modules() -> dict[str, str]:
    """Module -> sha256 of its code, of all that this process has loaded of the payload."""
    return dict(sorted(_digests.items()))


def digest(code: CodeType) -> str:
    """sha256 of what a module's code does: its instructions, names and constants, not its place or its lines.

    ``ddtree-deploy`` computes the same from the files that it installed: ``docs/payload.md``.
    """
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


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        assert code is not None  # there is a source
        _digests[module.__name__] = digest(code)
        exec(code, module.__dict__)


class _Finder:
    """Finds what Python's own finder finds; what comes from a file of the payload is noted when it runs."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{__package__}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def begin(package: CodeType) -> None:
    """Note all that is imported from here on, and what runs already: ``package`` and this module."""
    _digests[str(__package__)] = digest(package)
    _digests[__name__] = digest(_own)
    sys.meta_path.insert(0, _Finder)


_own = sys._getframe().f_code
