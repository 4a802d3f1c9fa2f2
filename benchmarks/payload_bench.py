"""Microseconds per tree: the plain cost model against the payload's fast CPU path, same outputs, in one run.

    python benchmarks/payload_bench.py [--rounds N]

Run by the Python of an SGLang venv (torch, numba).  Both build the tree, its ancestor mask and its
first-child / next-sibling links, for L = 15 positions, k = 32 candidates, batches of 32; both in float64, as
the cost model computes.  The last column is the fast path in float32, as it serves.  Best of the rounds.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "payload")]

import reference_tree  # noqa: E402
from sglang_ddtree.tree_batch import (  # noqa: E402
    MaskWorkspace,
    build_ddtree_batch,
    build_with_reference,
    select_builder,
)

DEPTH, WIDTH, BATCH = 15, 32, 32
BUDGETS = (16, 32, 64, 128, 256, 512, 1024)
GOAL = 10.0


def draft(rng):
    """Log-probs and ids ``[BATCH, DEPTH, WIDTH]`` of a draft that grows less sure with depth."""
    sharpness = np.linspace(3.0, 1.0, DEPTH)[None, :, None]
    logits = np.sort(rng.normal(size=(BATCH, DEPTH, 512)) * sharpness, axis=-1)[..., ::-1]
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(rng.random((BATCH, DEPTH, 512)), axis=-1)[..., :WIDTH].astype(np.int64)
    return np.ascontiguousarray(logps[..., :WIDTH]), ids


def best_of(rounds, function, *arguments):
    """Microseconds per tree of the fastest of ``rounds`` calls, each a whole batch."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - began)
    return min(times) / BATCH * 1e6


def build_with_cost_model(lists, budget):
    return [reference_tree.build(logps, tokens, budget) for logps, tokens in lists]


def check_equal(batch, reference):
    for row, (parents, tokens, depths, scores, mask, first, sibling) in enumerate(reference):
        same = (
            batch.parents[row].tolist() == parents
            and batch.token_ids[row, 1:].tolist() == tokens
            and batch.depths[row, 1:].tolist() == depths
            and batch.scores[row, 1:].tolist() == scores
            and np.array_equal(batch.visibility[row].numpy(), mask)
            and batch.retrieve_next_token[row].tolist() == first
            and batch.retrieve_next_sibling[row].tolist() == sibling
        )
        if not same:
            sys.exit(f"tree {row} of the batch differs from the cost model's")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    if select_builder(DEPTH, WIDTH) is build_with_reference:
        sys.exit("the fast path needs numba, one of SGLang's own dependencies: pip install numba")

    logps, ids = draft(np.random.default_rng(0))
    logps32 = logps.astype(np.float32)
    lists = [(one.tolist(), tokens.tolist()) for one, tokens in zip(logps, ids, strict=True)]
    build_ddtree_batch(ids, logps, 1), build_ddtree_batch(ids, logps32, 1)  # compile

    print(f"{'budget':>6} {'reference us':>13} {'fast us':>9} {'ratio':>7} {'fast f32 us':>12}")
    slowest = float("inf")
    for budget in BUDGETS:
        check_equal(build_ddtree_batch(ids, logps, budget), build_with_cost_model(lists, budget))
        plain = best_of(max(3, rounds // 2), build_with_cost_model, lists, budget)
        workspace = MaskWorkspace()  # as the worker has one
        fast = best_of(rounds * 3, build_ddtree_batch, ids, logps, budget, workspace)
        fast32 = best_of(rounds * 3, build_ddtree_batch, ids, logps32, budget, workspace)
        slowest = min(slowest, plain / fast)
        print(f"{budget:>6} {plain:>13.1f} {fast:>9.2f} {plain / fast:>6.0f}x {fast32:>12.2f}", flush=True)
    if slowest < GOAL:
        sys.exit(f"the fast path must be at least {GOAL:.0f}x at every budget; the least was {slowest:.1f}x")


if __name__ == "__main__":
    main()
