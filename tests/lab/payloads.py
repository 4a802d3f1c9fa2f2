"""A small payload for the fake venv: a package with an entry point, an overlay, a check."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import yaml

from tests.lab.fake_venv import FILES, VERSION

OVERLAID = "sglang/srt/speculative/dflash_info.py"
CHECK_SAYS = "tiny_ok 32"

CHECK = """import importlib.metadata

import tiny_ddtree
from sglang.srt.speculative import dflash_info

names = [e.name for e in importlib.metadata.entry_points(group="sglang.srt.plugins")]
assert names == ["tiny"], names
print("tiny_ok", dflash_info.width())
"""

# What the shipped payload uses to say which code a process has loaded; a module of its own beside it.
LOADED = Path(__file__).parents[2] / "payload/sglang_ddtree/loaded.py"
TELLS = """
import sys

from tiny_ddtree import loaded

loaded.begin(sys._getframe().f_code)
from tiny_ddtree import module0  # noqa: E402


def tell():
    return {loaded.FIELD: loaded.modules()}
"""

PLAYBOOK: dict[str, Any] = {
    "schema": 1,
    "name": "rollout",
    "action": "rollout",
    "steps": [
        "local",
        "lock",
        {"preflight": {"min_free": "1MiB"}},
        "backup",
        "stage",
        "compile",
        "smoke",
        {
            "baseline": {
                "prompts": "prompts.jsonl",
                "tokens": 2,
                "max_new_tokens": 8,
                "bench": {
                    "num_prompts": 8,
                    "concurrency": 4,
                    "output_len": 8,
                    "rounds": 1,
                    "min_round": "0s",
                },
            }
        },
        "stop",
        "install",
        "start",
        {"health": {"requests": 3, "need": 3, "max_new_tokens": 4, "deadline": "60s"}},
        "tokens",
        "acceptance",
        # The fake server's speed is the machine's: completeness is judged, speed is not.
        {"benchmark": {"min_ratio": None}},
        {"soak": {"requests": 8, "concurrency": 2, "max_new_tokens": 4}},
        {"unlock": {"settle": "0s"}},
    ],
}


def make_payload(
    folder: Path,
    *,
    version: str = "0.1.0",
    broken: str = "",
    files: int = 2,
    size: int = 0,
    serves: bool = False,
    overlay: str = "",
) -> Path:
    """Write a payload folder. `broken`: "syntax" does not compile, "check" fails its check.

    `files` modules of about `size` bytes each, of text that compresses as source does. `serves`: the server
    says which of them it has loaded. `overlay`: more lines for the overlaid module.
    """
    package = folder / "tiny_ddtree"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n' + (TELLS if serves else ""))
    if serves:
        (package / "loaded.py").write_text(LOADED.read_text())
    words = [w for text in FILES.values() for w in text.split()]
    rng = random.Random(version)
    for i in range(files):
        lines = [f'"""Module {i} of {version}."""\n']
        while sum(map(len, lines)) < size:
            lines.append(f"x{len(lines)} = {' '.join(rng.choices(words, k=8))!r}\n")
        (package / f"module{i}.py").write_text("".join(lines))
    if broken == "syntax":
        (package / "module0.py").write_text("def broken(:\n    pass\n")
    (folder / "overlay").mkdir()
    (folder / "overlay/dflash_info.py").write_text(
        f"BLOCK = 32  # {version}\n{overlay}\n\ndef width():\n    return BLOCK\n"
    )
    (folder / "checks").mkdir()
    (folder / "checks/tiny_smoke.py").write_text("raise SystemExit(3)\n" if broken == "check" else CHECK)
    spec: dict[str, Any] = {
        "schema": 1,
        "name": "tiny",
        "version": version,
        "variants": [
            {
                "name": f"sglang-{VERSION}",
                "sglang": [VERSION],
                "files": [{"from": "tiny_ddtree", "to": "site:tiny_ddtree"}],
                "overlays": [
                    {
                        "to": f"sglang:{OVERLAID.removeprefix('sglang/')}",
                        "base": hashlib.sha256(FILES[OVERLAID].encode()).hexdigest(),
                        "file": "overlay/dflash_info.py",
                    }
                ],
                "dist_info": {
                    "name": "tiny",
                    "entry_points": {"sglang.srt.plugins": {"tiny": "tiny_ddtree:register"}},
                },
            }
        ],
        "checks": {"smoke": {"script": "checks/tiny_smoke.py", "expect": CHECK_SAYS}},
        "attachments": [],
    }
    if serves:
        spec["variants"][0]["serves"] = {"server_info": "ddtree_modules", "equals": "modules"}
    (folder / "payload.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return folder


def write_playbooks(folder: Path, **step_options: Any) -> None:
    """Write rollout.yaml, rollback.yaml and prompts.jsonl. `step_options`: kind -> options to use instead;
    None leaves the step out."""
    steps = []
    for step in PLAYBOOK["steps"]:
        kind = step if isinstance(step, str) else next(iter(step))
        if step_options.get(kind, step) is None:
            continue
        steps.append({kind: step_options[kind]} if kind in step_options else step)
    write = [(PLAYBOOK | {"steps": steps}, "rollout")]
    back = [s for s in steps if (s if isinstance(s, str) else next(iter(s))) not in NOT_IN_A_ROLLBACK]
    write.append((PLAYBOOK | {"name": "rollback", "action": "rollback", "steps": back}, "rollback"))
    for playbook, name in write:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(playbook, sort_keys=False))
    shipped = Path(__file__).parents[2] / "playbooks/prompts.jsonl"
    (folder / "prompts.jsonl").write_text(shipped.read_text())


NOT_IN_A_ROLLBACK = ("local", "compile", "smoke", "baseline", "tokens", "acceptance", "benchmark", "soak")
