"""What is installed in the venv, asked of its own interpreter without importing any of it."""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import subprocess
import zlib
from dataclasses import dataclass, replace
from typing import Any

from ..programs import bounded
from ..venv.files import Files
from ..wire.facts import Package
from ..wire.protocol import FileState
from . import site_probe

PROBE_S = 60.0
CONTENT_LIMIT = 1 << 20


class ProbeError(Exception):
    """The interpreter could not answer; the message is its last line."""


@dataclass(frozen=True)
class Site:
    purelib: str  # real path
    python_version: list[int]
    packages: dict[str, Package]
    noise: str = ""  # the first line on stderr: a broken .pth file shows here


def answer(begun: bounded.Call) -> Site:
    """What a probe that was begun found. Raises ProbeError."""
    try:
        done = begun.result(PROBE_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeError(str(error)) from None
    answers = [line for line in done.stdout.split("\n") if line.startswith(site_probe.MARK)]
    errors = done.stderr.strip().splitlines()
    if not answers:
        raise ProbeError(
            f"{begun.argv[0]} ended with {done.returncode}: {errors[-1] if errors else 'it said nothing'}"
        )
    value: dict[str, Any] = json.loads(answers[-1][len(site_probe.MARK) :])
    packages = {name: Package(**p) for name, p in value["packages"].items()}
    return Site(os.path.realpath(value["purelib"]), value["python"], packages, errors[0] if errors else "")


def cuda_of(torch_folder: str) -> str:
    """The CUDA that torch was built for, out of its version.py: importing torch takes seconds; empty for
    none."""
    try:
        with open(os.path.join(torch_folder, "version.py"), encoding="utf-8", errors="replace") as f:
            text = f.read(65536)
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\w.]+)['\"]", text, re.M)
    return found[1] if found else ""


def freeze(site: str) -> list[str]:
    """`name==version` of each distribution in site-packages, by the names of their dist-info folders."""
    try:
        names = os.listdir(site)
    except OSError:
        return []
    found = []
    for name in names:
        stem, dot, _ = name.rpartition(".dist-info")
        title, dash, version = stem.partition("-")
        if dot and dash and name.endswith(".dist-info"):
            found.append(f"{title.replace('_', '-').lower()}=={version}")
    return sorted(found)


def path_of(ref: str, site: str, package_dir: str) -> str:
    """The absolute path of `site:REL` or `sglang:REL`; "" without the package. Raises ValueError."""
    room, _, rel = ref.partition(":")
    if not rel or rel.startswith("/") or ".." in rel.split("/") or os.path.normpath(rel) != rel:
        raise ValueError(f"{ref}: not a plain relative path")
    base = site if room == "site" else package_dir
    return os.path.join(base, rel) if base else ""


def file_state(files: Files, path: str, contents: bool) -> FileState:
    """One path as it is; never raises for what the path is."""
    if not path:
        return FileState(path, "absent")
    try:
        entry = files.look(path)
    except OSError:  # not ours to read
        info = os.lstat(path)
        return FileState(path, "other", "unreadable", stat.S_IMODE(info.st_mode), info.st_nlink, info.st_size)
    state = FileState(path, entry.kind, entry.sha256, entry.mode, entry.nlink, entry.size, entry.link)
    if contents and entry.kind == "file" and entry.size <= CONTENT_LIMIT:
        return replace(state, content_b64=packed(files.disk.read(path)))
    return state


def packed(data: bytes) -> str:
    """zlib + base64, as contents travel."""
    return base64.b64encode(zlib.compress(data)).decode()
