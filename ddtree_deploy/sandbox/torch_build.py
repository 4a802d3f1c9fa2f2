"""Which build of torch pip would fetch, how big it is, and what to do if it is the wrong one."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_ACCELERATOR_PREFIXES = ("nvidia-", "cuda-")
_ACCELERATOR_LOCALS = ("cu", "rocm", "xpu")
HEAD_TIMEOUT = 10.0


@dataclass(frozen=True)
class TorchBuild:
    """What an installation report says of torch.

    Attributes:
        version: torch's version, with its local part where it has one.
        packages: names of the CUDA packages that come with it.
        size: bytes of torch and of those packages; None where an index did not tell.
        cuda: whether it is a build for an accelerator.
    """

    version: str
    packages: tuple[str, ...]
    size: int | None
    cuda: bool

    @property
    def size_text(self) -> str:
        """The size for people."""
        return f"{self.size / 1e9:.1f} GB to download" if self.size else "size unknown, some GB"


def cpu_build_offered(versions: list[str], version: str) -> bool:
    """Whether pip would take a CPU build for ``torch==version``, from the list of all versions offered.

    Of several builds of a version pip takes the one whose local part sorts last, and any local part
    before none: with ``2.13.0+cpu`` and ``2.13.0`` on offer it is the first.
    """
    locals_ = [local for base, _, local in (text.partition("+") for text in versions) if base == version]
    return bool(locals_) and max(locals_).startswith("cpu")


def from_report(report: dict[str, Any], size_of: Callable[[str], int | None] | None = None) -> TorchBuild:
    """Read pip's installation report (``pip install --dry-run --report``).

    Args:
        report: the report, as parsed JSON.
        size_of: gives the bytes behind a URL, or None; by default it looks at the file or asks the server.
    """
    items = {
        str(item["metadata"]["name"]).lower().replace("_", "-"): item for item in report.get("install", [])
    }
    torch = items.get("torch", {"metadata": {"version": ""}})
    version = str(torch["metadata"]["version"])
    packages = tuple(sorted(name for name in items if name.startswith(_ACCELERATOR_PREFIXES)))
    local = version.partition("+")[2]
    cuda = bool(packages) or local.startswith(_ACCELERATOR_LOCALS)
    sizes = (
        [
            (size_of or remote_size)(items[name]["download_info"]["url"])
            for name in ("torch", *packages)
            if name in items
        ]
        if cuda
        else []
    )
    known = [size for size in sizes if size is not None]
    return TorchBuild(version, packages, sum(known) if sizes and len(known) == len(sizes) else None, cuda)


def advice(build: TorchBuild) -> list[str]:
    """What to tell before a CUDA build is fetched."""
    extras = f" and {len(build.packages)} CUDA packages" if build.packages else ""
    return [
        f"pip would fetch a CUDA build: torch {build.version}{extras}, {build.size_text}, "
        "though this host needs no GPU; the CPU build is about 0.2 GB",
        'to use it: --torch-index-url URL with the index for "CPU" that PyTorch\'s Get Started page gives, '
        "or PIP_EXTRA_INDEX_URL=URL, or PIP_FIND_LINKS=FOLDER with a downloaded CPU wheel",
    ]


def remote_size(url: str) -> int | None:
    """Bytes behind a file or HTTP URL, or None where that cannot be told."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(unquote(parts.path)).stat().st_size
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=HEAD_TIMEOUT) as answer:
            length = answer.headers.get("Content-Length")
            return int(length) if length else None
    except (OSError, ValueError):
        return None
