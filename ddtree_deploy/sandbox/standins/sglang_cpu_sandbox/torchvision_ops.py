"""Let a torchvision that was built for another torch be imported.

PyPI's torchvision is a CUDA build: beside a CPU torch its library does not load, and its import then fails
on two operators that nothing has declared.  SGLang imports torchvision for its image processors only, so
declaring the operators is enough; they are never called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class DeclareOperators:
    """A finder that finds nothing; it notices the first import of torchvision and declares its operators."""

    library: object = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            if builds_differ(_version("torch"), _version("torchvision")):
                import torch

                # Kept: the operators go when the library object does.
                DeclareOperators.library = library = torch.library.Library("torchvision", "DEF")
                for operator in OPERATORS:
                    library.define(operator)
        return None


def builds_differ(torch: str, torchvision: str) -> bool:
    """Whether torch is a CPU build and torchvision is not, by their versions' local parts."""
    return torch.endswith("+cpu") and not torchvision.endswith("+cpu")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if not any(isinstance(finder, DeclareOperators) for finder in sys.meta_path):
    sys.meta_path.insert(0, DeclareOperators())
