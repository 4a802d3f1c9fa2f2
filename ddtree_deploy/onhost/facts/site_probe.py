"""Ask a venv's interpreter what is installed there. `site_facts` reads the answer; the question is put here,
with as few imports as can be, so that the interpreter is at work while its asker still loads.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ..programs import bounded

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


def begin(python: str, package: str = "sglang") -> bounded.Call:
    """Start it. As root, in somebody else's venv, its owner asks. Raises OSError."""
    names = {**DISTRIBUTIONS, package: package}
    return bounded.Call(
        [python, "-I", "-B", "-c", PROBE, json.dumps(names), MARK], cwd="/", **owner_of(python)
    )


def owner_of(python: str) -> dict[str, Any]:
    """Arguments for subprocess: as root, be the owner of the venv that `python` belongs to; else nothing."""
    info = os.stat(os.path.dirname(os.path.dirname(python)))
    if os.geteuid() or info.st_uid == 0:
        return {}
    return {"user": info.st_uid, "group": info.st_gid, "extra_groups": []}
