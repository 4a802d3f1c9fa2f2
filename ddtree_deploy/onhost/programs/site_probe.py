"""Where an interpreter finds what, asked of itself without importing any of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..wire.facts import Package
from . import bounded

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
# the versions, too, and takes as long to import as all the rest takes. What the probe itself needs is
# imported without the folder that the service has first on its path: a json.py there is not for us. At the
# end no exit handlers: what somebody else's .pth file has hooked in writes no files for us.
PROBE = r"""
import sys
safe = getattr(sys.flags, "safe_path", sys.flags.isolated)
first = None if safe else sys.path.pop(0)
import importlib.util, json, os, sysconfig
if first is not None:
    sys.path.insert(0, sys.argv[3] or first)
found = {
    "purelib": sysconfig.get_paths()["purelib"],
    "prefix": sys.prefix,
    "stdlib": os.path.dirname(os.__file__),
    "python": list(sys.version_info[:3]),
    "cache": getattr(sys, "pycache_prefix", None) or "",
    "packages": {},
    "modules": {},
}
def text(*path):
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""
def plain(name):
    return "-".join(filter(None, name.lower().replace("_", "-").replace(".", "-").split("-")))
def version_of(info):
    head = (text(info, "METADATA") or text(info, "PKG-INFO") or text(info)).partition("\n\n")[0]
    lines = [line.partition(":") for line in head.splitlines()]
    return next((value.strip() for key, _, value in lines if key.lower() == "version"), "")
def place_of(module):
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        return "", False
    places = list(spec.submodule_search_locations or [])
    return os.path.abspath(places[0] if places else spec.origin or "?"), bool(places)
infos = {}
for place in sys.path:
    try:
        names = os.listdir(place or ".")
    except OSError:
        continue
    here = {}
    for name in names:
        stem, kind = os.path.splitext(name)
        if kind in (".dist-info", ".egg-info"):
            here.setdefault(plain(stem.partition("-")[0]), []).append(os.path.join(place, name))
    for name, paths in here.items():
        infos.setdefault(name, paths)
for name, module in json.loads(sys.argv[1]).items():
    paths, url = infos.get(plain(name), []), {}
    # Of two in one folder Python takes the one that the file system lists first.
    version = " and ".join(sorted(set(filter(None, map(version_of, paths)))))
    for info in paths:
        try:
            url = json.loads(text(info, "direct_url.json") or "{}")
        except ValueError:
            pass
    place, package = place_of(module)
    found["modules"][module] = place
    if version or (package and module == name):
        found["packages"][name] = {
            "version": version or "?",
            "folder": place if package else "",
            "editable": bool(url.get("dir_info", {}).get("editable")),
        }
for module in json.loads(sys.argv[4]):
    found["modules"][module] = place_of(module)[0]
print("\n" + sys.argv[2] + json.dumps(found), flush=True)
os._exit(0)
"""

PROBE_S = 60.0


class ProbeError(Exception):
    """The interpreter could not answer; the message is its last line."""


@dataclass(frozen=True)
class Site:
    """What an interpreter says, started in one certain way. Paths are real."""

    purelib: str
    python_version: list[int]
    packages: dict[str, Package]
    noise: str = ""  # the first line on stderr: a broken .pth file shows here
    prefix: str = ""
    stdlib: str = ""
    cache: str = ""  # where it keeps its bytecode, if not beside the sources
    modules: dict[str, str] = field(default_factory=dict)  # top-level name -> folder or file; "" = none


def ask(python: str, package: str = "sglang", modules: Iterable[str] = ()) -> Site:
    """What a venv's interpreter says. As root, in somebody else's venv, its owner asks. Raises ProbeError."""
    return ask_as([python, "-I"], package, modules, cwd="/", **owner_of(python))


def ask_as(
    call: list[str],
    package: str,
    modules: Iterable[str],
    *,
    first: str = "",
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> Site:
    """What the interpreter says that is called by `call`, with `first` in the place of a script's folder.

    `more`: further arguments of subprocess.Popen (cwd, user). Raises ProbeError.
    """
    names = json.dumps({**DISTRIBUTIONS, package: package})
    argv = [*call, "-B", "-c", PROBE, names, MARK, first, json.dumps(sorted(set(modules)))]
    try:
        done = bounded.call(argv, seconds=PROBE_S, env=env, **more)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ProbeError(str(error)) from error
    answers = [line for line in done.stdout.split("\n") if line.startswith(MARK)]
    errors = done.stderr.strip().splitlines()
    if not answers:
        said = errors[-1] if errors else "it said nothing"
        raise ProbeError(f"{call[0]} ended with {done.returncode}: {said}")
    value: dict[str, Any] = json.loads(answers[-1][len(MARK) :])
    packages = {name: Package(**p) for name, p in value["packages"].items()}
    return Site(
        os.path.realpath(value["purelib"]),
        value["python"],
        packages,
        errors[0] if errors else "",
        os.path.realpath(value["prefix"]),
        os.path.realpath(value["stdlib"]),
        value["cache"],
        {name: place and os.path.realpath(place) for name, place in value["modules"].items()},
    )


def tops(refs: Iterable[str]) -> set[str]:
    """Top-level modules that such refs (`site:NAME/...`, `site:NAME.py`) put into site-packages."""
    firsts = {ref.removeprefix("site:").partition("/")[0] for ref in refs if ref.startswith("site:")}
    return {name for name in (first.removesuffix(".py") for first in firsts) if name.isidentifier()}


def owner_of(python: str) -> dict[str, Any]:
    """Arguments for subprocess: as root, be the owner of the venv that `python` belongs to; else nothing."""
    info = os.stat(os.path.dirname(os.path.dirname(python)))
    if os.geteuid() or info.st_uid == 0:
        return {}
    return {"user": info.st_uid, "group": info.st_gid, "extra_groups": []}
