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
from pathlib import Path
from typing import Any

from ..programs import bounded
from ..venv.files import Files
from ..wire.facts import Package
from ..wire.protocol import FileState

MARK = "DDTREE-PROBE "
# Distribution -> module whose folder is asked; what decides whether a payload can run.
DISTRIBUTIONS = {
    "sglang": "sglang",
    "torch": "torch",
    "triton": "triton",
    "sglang-kernel": "sgl_kernel",
    "sgl-kernel": "sgl_kernel",
    "flashinfer-python": "flashinfer",
    "transformers": "transformers",
    "numpy": "numpy",
}

# Runs with the site module, so that .pth files and editable finders do their work; whatever they print, the
# answer is the marked line. `find_spec` of a top-level name imports nothing. `importlib.metadata` would give
# the versions, too, and takes as long to import as all the rest takes.
PROBE = r"""
import importlib.util, json, os, sys, sysconfig
found = {"purelib": sysconfig.get_paths()["purelib"], "python": list(sys.version_info[:3]), "packages": {}}
def text(*path):
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""
def plain(name):
    return "-".join(filter(None, name.lower().replace("_", "-").replace(".", "-").split("-")))
infos = {}
for place in sys.path:
    try:
        names = os.listdir(place or ".")
    except OSError:
        continue
    for name in names:
        stem, kind = os.path.splitext(name)
        if kind in (".dist-info", ".egg-info"):
            infos.setdefault(plain(stem.partition("-")[0]), os.path.join(place, name))
for name, module in json.loads(sys.argv[1]).items():
    info, version, url = infos.get(plain(name), ""), "", {}
    if info:
        head = (text(info, "METADATA") or text(info, "PKG-INFO") or text(info)).partition("\n\n")[0]
        lines = [line.partition(":") for line in head.splitlines()]
        version = next((value.strip() for key, _, value in lines if key.lower() == "version"), "")
        try:
            url = json.loads(text(info, "direct_url.json") or "{}")
        except ValueError:
            pass
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    places = list(spec.submodule_search_locations or []) if spec else []
    if version or (places and module == name):
        found["packages"][name] = {
            "version": version or "?",
            "folder": os.path.abspath(places[0]) if places else "",
            "editable": bool(url.get("dir_info", {}).get("editable")),
        }
print("\n" + sys.argv[2] + json.dumps(found), flush=True)
"""

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


def ask(python: str, package: str = "sglang") -> Site:
    """What a venv's interpreter says. As root, in somebody else's venv, its owner asks. Raises ProbeError."""
    names = json.dumps({**DISTRIBUTIONS, package: package})
    argv = [python, "-I", "-B", "-c", PROBE, names, MARK]
    try:
        done = bounded.call(argv, seconds=PROBE_S, cwd="/", **owner_of(python))
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeError(str(error)) from None
    answers = [line for line in done.stdout.split("\n") if line.startswith(MARK)]
    errors = done.stderr.strip().splitlines()
    if not answers:
        raise ProbeError(
            f"{python} ended with {done.returncode}: {errors[-1] if errors else 'it said nothing'}"
        )
    value: dict[str, Any] = json.loads(answers[-1][len(MARK) :])
    packages = {name: Package(**p) for name, p in value["packages"].items()}
    return Site(os.path.realpath(value["purelib"]), value["python"], packages, errors[0] if errors else "")


def owner_of(python: str) -> dict[str, Any]:
    """Arguments for subprocess: as root, be the owner of the venv that `python` belongs to; else nothing."""
    info = os.stat(os.path.dirname(os.path.dirname(python)))
    if os.geteuid() or info.st_uid == 0:
        return {}
    return {"user": info.st_uid, "group": info.st_gid, "extra_groups": []}


def cuda_of(torch_folder: str) -> str:
    """The CUDA that torch was built for, "" for none; from version.py: importing torch takes seconds."""
    try:
        with open(os.path.join(torch_folder, "version.py"), encoding="utf-8", errors="replace") as f:
            text = f.read(65536)
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\w.]+)['\"]", text, re.M)
    return found[1] if found else ""


def freeze(site: str) -> list[str]:
    """`name==version` of each distribution in site-packages, by the names of their dist-info folders."""
    parts = (folder.stem.partition("-") for folder in Path(site).glob("*.dist-info"))
    return sorted(f"{title.replace('_', '-').lower()}=={version}" for title, dash, version in parts if dash)


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
