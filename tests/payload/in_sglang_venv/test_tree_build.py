"""Best-first construction: exact outputs, brute force, ties, and rows that softmax cannot express."""

import numpy as np
import pytest
import torch
from sglang_ddtree.ddtree_utils import (
    assert_prefix_closed,
    build_ddtree_tree_from_logits,
    build_ddtree_tree_from_topk,
    compile_ddtree_retrieve,
    follow_verified_tree,
    summarize_ddtree,
)
from trees import all_rank_paths, random_ids, random_log_probs, rank_paths

INF, NAN = float("inf"), float("nan")


def build(logits, budget, **kwargs):
    return build_ddtree_tree_from_logits(torch.tensor(logits, dtype=torch.float32), budget, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_three_row_example_comes_out_exactly(dtype):
    tree = build_ddtree_tree_from_logits(torch.tensor([[5, 4, 1], [4, 3, 2], [3, 2, 1]], dtype=dtype), 5)
    accepted, bonus = follow_verified_tree(
        tree.child_maps, [int(tree.node_token_ids[0]), 123, 456, 789, 111, 222]
    )
    # Node 5 is an exact tie between the rank paths (0, 1) and (1, 0).
    assert tree.parents == [-1, 0, 1, 2, 0, 1]
    assert tree.node_token_ids.tolist() == [0, 0, 0, 1, 1]
    assert tree.node_depths.tolist() == [1, 2, 3, 1, 2]
    assert summarize_ddtree(tree, 5, accepted, bonus).to_dict() == {
        "budget": 5,
        "actual_nodes": 5,
        "max_depth": 3,
        "mean_depth": 1.8,
        "leaf_count": 3,
        "branch_count": 2,
        "accepted_node_count": 2,
        "accepted_draft_count": 1,
        "accepted_path_depth": 1,
        "bonus_token_id": 123,
    }


def test_the_accepted_depth_is_that_of_the_last_accepted_node():
    tree = build([[5, 4, 1], [4, 3, 2], [3, 2, 1]], 5)
    accepted, bonus = follow_verified_tree(tree.child_maps, [0, 0, 0, 7, 8, 9])
    assert accepted == [0, 1, 2, 3]
    assert summarize_ddtree(tree, 5, accepted, bonus).accepted_path_depth == 3
    assert summarize_ddtree(tree, 5, [0, 4], bonus).accepted_path_depth == 1
    assert summarize_ddtree(tree, 5, [0], bonus).accepted_path_depth == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_candidates_of_every_dtype_that_a_draft_gives_are_taken(dtype):
    """numpy has no bfloat16; halves are summed in float32."""
    logps = torch.tensor([[-0.25, -1.5], [-0.5, -1.0]], dtype=dtype)
    tree = build_ddtree_tree_from_topk(torch.tensor([[3, 4], [5, 6]]), logps, 3)
    assert tree.node_token_ids.tolist() == [3, 5, 6]
    assert tree.node_logws.dtype == torch.float32
    assert tree.node_logws.tolist() == [-0.25, -0.75, -1.25]


def test_the_two_row_example_comes_out_exactly():
    tree = build([[5, 4, 1], [4, 2, 1]], 4)
    assert len(tree.parents) == 5
    assert tree.parents == [-1, 0, 1, 0, 3]
    assert tree.node_token_ids.tolist() == [0, 0, 1, 0]
    assert tree.node_depths.tolist() == [1, 2, 1, 2]
    choices = [int(tree.node_token_ids[0]), 777, 888, 999, 111]
    assert follow_verified_tree(tree.child_maps, choices) == ([0, 1], 777)


def test_a_rejected_root_accepts_only_itself():
    tree = build([[5, 4, 1], [4, 2, 1]], 4)
    assert follow_verified_tree(tree.child_maps, [2, 0, 0, 0, 0]) == ([0], 2)


def test_the_tree_is_the_heaviest_rank_paths_in_order_on_500_random_cases():
    rng = np.random.default_rng(0)
    ties = 0
    for case in range(500):
        depth, width = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        dtype = np.float32 if case % 2 else np.float64
        logps = random_log_probs(rng, depth, width, dtype, coarse=case % 3 == 0)
        expected = all_rank_paths(logps)
        budget = int(rng.integers(0, len(expected) + 3))
        tree = build_ddtree_tree_from_topk(random_ids(rng, depth, width), logps, budget)
        assert_prefix_closed(tree)
        assert list(zip(rank_paths(tree), tree.node_logws.tolist(), strict=True)) == expected[:budget]
        scores = [score for _, score in expected[: budget + 1]]
        ties += len(scores) != len(set(scores))
    assert ties > 50, "the cases hold too few ties to test the tie rule"


def test_bf16_ties_are_taken_in_lexicographic_order():
    rng = np.random.default_rng(1)
    for _ in range(60):
        logits = torch.from_numpy(rng.normal(size=(4, 40))).to(torch.bfloat16)
        tree = build_ddtree_tree_from_logits(logits, 24, topk_cap=6)
        logps = torch.log_softmax(logits.float(), -1).sort(dim=-1, descending=True, stable=True)
        expected = all_rank_paths(logps.values[:, :6].contiguous().numpy())[:24]
        assert rank_paths(tree) == [path for path, _ in expected]
        ranks, depths = tree.node_ranks, tree.node_depths
        assert tree.node_token_ids.tolist() == logps.indices[depths - 1, ranks].tolist()


def test_a_cap_of_one_is_the_chain():
    tree = build(np.random.default_rng(2).normal(size=(5, 9)).tolist(), 64, topk_cap=1)
    assert tree.parents == [-1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(("budget", "nodes"), [(0, 0), (1, 1), (2, 2), (12, 12), (13, 12), (1000, 12)])
def test_the_size_is_the_budget_or_all_possible_nodes(budget, nodes):
    tree = build([[1, 2, 3], [4, 5, 6]], budget)
    assert tree.num_draft_nodes == nodes == len(tree.node_depths) == len(tree.node_logws)
    assert_prefix_closed(tree)


def test_no_draft_position_gives_the_root_alone():
    tree = build_ddtree_tree_from_logits(torch.zeros(0, 7), 8)
    assert tree.parents == [-1]
    assert follow_verified_tree(tree.child_maps, [5]) == ([0], 5)
    summary = summarize_ddtree(tree, 8, [0], 5)
    assert (summary.actual_nodes, summary.max_depth, summary.mean_depth, summary.leaf_count) == (0, 0, 0.0, 0)
    assert compile_ddtree_retrieve(tree, 3).retrieve_next_token.tolist() == [-1, -1, -1]


def test_a_certain_row_makes_the_child_as_heavy_as_its_parent():
    tree = build([[0.0, -INF], [0.0, -INF], [2.0, 1.0]], 4)
    assert tree.node_depths.tolist() == [1, 2, 3, 3]
    assert tree.node_logws[:2].tolist() == [0.0, 0.0]


def test_token_zero_is_an_ordinary_token():
    tree = build([[9, 1], [9, 1]], 3)
    assert tree.node_token_ids[0] == 0
    assert follow_verified_tree(tree.child_maps, [0, 0, 1, 1])[0] == [0, 1, 2]


def test_log_probs_are_normalised_over_the_whole_vocabulary():
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    tree = build_ddtree_tree_from_logits(logits, 3, topk_cap=3)
    assert torch.equal(tree.node_logws, torch.log_softmax(logits, -1)[0].topk(3).values)


@pytest.mark.parametrize(
    ("rows", "depths"),
    [
        ([[NAN, 1, 2], [1, 2, 3]], []),
        ([[1, 2, 3], [NAN, NAN, NAN], [1, 2, 3]], [1, 1, 1]),
        ([[-INF, -INF, -INF], [1, 2, 3]], []),
        ([[1, 2, 3], [-INF, -INF, -INF]], [1, 1, 1]),
        ([[INF, 2, 3], [1, INF, INF]], [1, 2, 2]),
        ([[5, -INF, -INF], [4, 3, -INF]], [1, 2, 2]),
    ],
    ids=["nan first", "nan second", "no mass first", "no mass second", "inf", "fewer finite than k"],
)
def test_rows_that_softmax_cannot_express(rows, depths):
    tree = build(rows, 10)
    assert sorted(tree.node_depths.tolist()) == depths
    assert bool(torch.isfinite(tree.node_logws).all())
    assert_prefix_closed(tree)


def test_infinite_logits_share_the_mass_in_token_order():
    tree = build([[1, INF, INF]], 5)
    assert tree.node_token_ids.tolist() == [1, 2]
    assert torch.allclose(tree.node_logws, torch.tensor([0.5, 0.5]).log())


def test_equal_logits_are_taken_in_token_order_also_at_the_cap():
    tree = build([[7.0] * 600], 5, topk_cap=5)
    assert tree.node_token_ids.tolist() == [0, 1, 2, 3, 4]


def test_a_padded_vocabulary_carries_no_mass():
    real = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    padded = torch.cat((real, torch.full((3, 12), 50.0)), dim=1)
    tree, expected = (
        build_ddtree_tree_from_logits(padded, 9, vocab_size=20),
        build_ddtree_tree_from_logits(real, 9),
    )
    assert tree.parents == expected.parents
    assert torch.equal(tree.node_token_ids, expected.node_token_ids)
    assert torch.equal(tree.node_logws, expected.node_logws)


@pytest.mark.parametrize(
    ("ids", "logps", "message"),
    [
        ([[1, 2]], [[-2.0, -1.0]], "rise"),
        ([[1, 1]], [[-1.0, -2.0]], "repeats"),
        ([[1, 2]], [[0.5, -1.0]], "above 0"),
        ([[1, 2, 3]], [[-1.0, -2.0]], "shape"),
        ([1, 2], [-1.0, -2.0], "shape"),
        ([[[1, 2]]], [[[-1.0, -2.0]]], "shape"),
    ],
)
def test_malformed_candidates_are_refused(ids, logps, message):
    with pytest.raises(ValueError, match=message):
        build_ddtree_tree_from_topk(torch.tensor(ids), torch.tensor(logps), 4)


def test_a_negative_budget_and_a_zero_cap_are_refused():
    with pytest.raises(ValueError, match="budget"):
        build([[1, 2]], -1)
    with pytest.raises(ValueError, match="topk_cap"):
        build([[1, 2]], 3, topk_cap=0)
    with pytest.raises(ValueError, match=r"\[L, V\]"):
        build([1, 2], 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parents", [-1, 0, 1, 2, 0, 5]),
        ("node_depths", torch.tensor([1, 2, 3, 1, 3])),
        ("node_ranks", torch.tensor([0, 0, 0, 1, 0])),
        ("node_logws", torch.tensor([-1.0, -1.1, -1.2, -0.5, -1.3])),
        ("node_token_ids", torch.tensor([0, 0, 0, 0, 1])),
    ],
)
def test_a_tree_that_is_not_prefix_closed_is_noticed(field, value):
    from dataclasses import replace

    tree = build([[5, 4, 1], [4, 3, 2], [3, 2, 1]], 5)
    assert_prefix_closed(tree)
    with pytest.raises(AssertionError):
        assert_prefix_closed(replace(tree, **{field: value}))
