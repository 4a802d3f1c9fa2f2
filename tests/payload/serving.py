"""Greedy references, and what a server's answers and log say beside them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

from sglang_venv import (
    MODELS,
    PROMPTS,
    Server,
    output_ids,
    sglang_environment,
    sglang_python,
)

HERE = Path(__file__).parent
NEW_TOKENS = 64
TIE_GAP = 1e-4  # below it, the reference's best and second token are one rounding apart
SERIAL = 4  # prompts that are also run one at a time
DRAFT = ["--speculative-draft-model-path", str(MODELS / "draft_half")]
DDTREE = ["--speculative-algorithm", "DDTREE", *DRAFT, "--speculative-ddtree-budget", "16"]


class Reference(NamedTuple):
    """Greedy continuations by transformers alone; at each token the gap to the second best, its log-prob."""

    tokens: list[list[int]]
    gaps: list[list[float]]
    logprobs: list[list[float]]

    def first(self, count: int, new_tokens: int = NEW_TOKENS) -> Reference:
        return Reference(*([row[:new_tokens] for row in rows[:count]] for rows in self))


def transformers_says(what, prompts, new_tokens, folder, model=MODELS / "target"):
    """The answer of ``hf_reference.py``, which runs transformers in the SGLang venv."""
    prompts_file, out = folder / f"{what}_prompts.json", folder / f"{what}.json"
    prompts_file.write_text(json.dumps(prompts))
    done = subprocess.run(
        [
            sglang_python(), str(HERE / "hf_reference.py"),
            what, str(model), str(prompts_file), str(new_tokens), str(out),
        ],
        check=False,
        env=sglang_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def greedy_reference(prompts, new_tokens, folder, model=MODELS / "target") -> Reference:
    results = transformers_says("greedy", prompts, new_tokens, folder, model)
    return Reference(*([one[field] for one in results] for field in Reference._fields))


def rows(reference: Reference, which: slice) -> Reference:
    return Reference(*(values[which] for values in reference))


def divergences(found, reference):
    """Prompts whose output leaves the reference where it is no tie, and the number of ties."""
    wrong, ties = [], 0
    for index, (ours, theirs, gaps) in enumerate(zip(found, reference.tokens, reference.gaps, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
        if at is not None and gaps[at] < TIE_GAP:
            ties += 1
        elif at is not None:
            wrong.append((index, at, gaps[at]))
    return wrong, ties


def assert_equal(name, answers, reference):
    """The answers are the reference's, ties apart; prints how many there were."""
    wrong, ties = divergences(output_ids(answers), reference)
    print(f"{name}: {len(answers)} prompts x {len(reference.tokens[0])} tokens, {ties} ties")
    assert wrong == [], f"{name}: (prompt, position, gap) {wrong}"
    assert ties <= 2


def assert_lossless(server, reference):
    """Batched and one at a time, the server's greedy output is the reference. Returns the batched answers."""
    batched = server.generate(PROMPTS)
    assert_equal(f"{server.name} batched", batched, reference)
    assert_equal(f"{server.name} serial", server.generate(PROMPTS[:SERIAL], batch=1), reference.first(SERIAL))
    return batched


def verified_trees(server: Server, start: int = 0) -> list[dict]:
    """The lines that ``debug-metrics`` wrote from byte ``start`` of the log; no invariant may be broken."""
    log = server.log.read_bytes()[start:].decode(errors="replace")
    assert "ddtree_invariant_broken" not in log
    return [
        json.loads(line.split("ddtree_verify ")[1]) for line in log.splitlines() if "ddtree_verify " in line
    ]
