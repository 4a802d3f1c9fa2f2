"""The builders have one contract: the compiled one gives, bit for bit, what the plain reference gives."""

import logging
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch
from conftest import REPOSITORY
from sglang_ddtree import tree_batch, tree_numba
from sglang_ddtree.ddtree_utils import (
    assert_prefix_closed,
    build_ddtree_tree_from_topk,
    compile_ddtree_retrieve,
)
from sglang_ddtree.tree_batch import build_ddtree_batch, build_with_reference, select_builder
from trees import all_rank_paths, random_ids, random_log_probs, rank_paths


def random_batch(rng, coarse):
    batch, depth, width = int(rng.integers(1, 6)), int(rng.integers(1, 17)), int(rng.integers(1, 33))
    dtype = np.float32 if rng.random() < 0.5 else np.float64
    ids = np.stack([random_ids(rng, depth, width) for _ in range(batch)])
    logps = np.stack([random_log_probs(rng, depth, width, dtype, coarse) for _ in range(batch)])
    for row in range(batch):  # rows that end early, or are empty
        if rng.random() < 0.3:
            logps[row, int(rng.integers(0, depth)), int(rng.integers(0, width)) :] = rng.choice(
                [-np.inf, np.nan]
            )
    return ids, logps


def assert_equal(ours, theirs):
    for one in fields(ours):
        assert torch.equal(getattr(ours, one.name), getattr(theirs, one.name)), one.name


def test_the_compiled_builder_equals_the_reference_on_500_random_batches(monkeypatch):
    rng = np.random.default_rng(0)
    for case in range(500):
        ids, logps = random_batch(rng, coarse=case % 2 == 0)
        budget = int(rng.choice([0, 1, 2, 7, 16, 33, 64, 200]))
        assert select_builder(*ids.shape[1:]) is tree_numba.build_trees
        ours = build_ddtree_batch(ids, logps, budget)
        with monkeypatch.context() as patch:
            patch.setattr(tree_batch, "select_builder", lambda *_: build_with_reference)
            assert_equal(ours, build_ddtree_batch(ids, logps, budget))


@pytest.mark.parametrize("budget", [256, 1024])
def test_the_compiled_builder_equals_the_reference_at_large_budgets(monkeypatch, budget):
    rng = np.random.default_rng(1)
    ids = np.stack([random_ids(rng, 15, 32) for _ in range(2)])
    logps = np.stack([random_log_probs(rng, 15, 32, coarse=coarse) for coarse in (True, False)])
    ours = build_ddtree_batch(ids, logps, budget)
    monkeypatch.setattr(tree_batch, "select_builder", lambda *_: build_with_reference)
    assert_equal(ours, build_ddtree_batch(ids, logps, budget))


def test_the_compiled_builder_equals_brute_force_in_order_on_500_small_cases():
    rng = np.random.default_rng(2)
    for case in range(500):
        depth, width = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        logps = random_log_probs(rng, depth, width, coarse=case % 2 == 0)
        expected = all_rank_paths(logps)
        budget = int(rng.integers(0, len(expected) + 3))
        tree = build_ddtree_batch(random_ids(rng, depth, width)[None], logps[None], budget).tree(0)
        assert_prefix_closed(tree)
        assert list(zip(rank_paths(tree), tree.node_logws.tolist(), strict=True)) == expected[:budget]


@pytest.mark.parametrize("has_numba", [True, False])
def test_a_reused_workspace_changes_nothing(monkeypatch, has_numba):
    if not has_numba:
        monkeypatch.setitem(sys.modules, "sglang_ddtree.tree_numba", None)
        monkeypatch.setattr(tree_batch, "select_builder", lambda *_: build_with_reference)
    rng, workspace = np.random.default_rng(5), tree_batch.MaskWorkspace()
    for _ in range(60):
        ids, logps = random_batch(rng, coarse=False)
        budget = int(rng.choice([12, 12, 12, 20]))
        fresh = build_ddtree_batch(ids, logps, budget)
        assert_equal(build_ddtree_batch(ids, logps, budget, workspace), fresh)


def test_one_tree_of_a_batch_is_the_tree_built_alone():
    rng = np.random.default_rng(3)
    ids, logps = random_ids(rng, 6, 8), random_log_probs(rng, 6, 8)
    alone, batch = build_ddtree_tree_from_topk(ids, logps, 20), build_ddtree_batch(ids[None], logps[None], 24)
    wide = build_ddtree_tree_from_topk(ids, logps, 24)
    assert batch.tree(0).parents == wide.parents and wide.parents[:21] == alone.parents
    assert batch.tree(0).child_maps == wide.child_maps
    assert torch.equal(batch.visibility[0], compile_ddtree_retrieve(wide).visibility)


def test_the_cost_model_gives_the_same_trees():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import reference_tree

    rng = np.random.default_rng(4)
    for _ in range(50):
        ids, logps = random_ids(rng, 7, 9), random_log_probs(rng, 7, 9, np.float64)
        batch = build_ddtree_batch(ids[None], logps[None], 30)
        parents, tokens, depths, scores, mask, first, sibling = reference_tree.build(
            logps.tolist(), ids.tolist(), 30
        )
        assert batch.parents[0].tolist() == parents
        assert batch.token_ids[0, 1:].tolist() == tokens
        assert batch.depths[0, 1:].tolist() == depths
        assert batch.scores[0, 1:].tolist() == scores
        assert np.array_equal(batch.visibility[0].numpy(), mask)
        assert batch.retrieve_next_token[0].tolist() == first
        assert batch.retrieve_next_sibling[0].tolist() == sibling


@pytest.mark.parametrize(("depth", "width"), [(17, 4), (3, 257)])
def test_beyond_its_limits_the_reference_takes_over_with_one_log_line(caplog, depth, width):
    select_builder.cache_clear()
    with caplog.at_level(logging.WARNING, "sglang_ddtree.tree_batch"):
        for _ in range(3):
            assert select_builder(depth, width) is build_with_reference
    assert len(caplog.records) == 1
    assert "exceed the compiled one's 16, 256" in caplog.text
