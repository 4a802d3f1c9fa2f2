"""The arrays that verify reads, and the two walks over them."""

import numpy as np
import pytest
import torch
from sglang_ddtree.ddtree_utils import (
    build_ddtree_tree_from_topk,
    compile_ddtree_retrieve,
    follow_verified_tree,
)
from sglang_ddtree.tree_batch import build_ddtree_batch
from trees import kernel_walk, random_ids, random_log_probs


def random_trees(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        depth, width, budget = int(rng.integers(1, 8)), int(rng.integers(1, 7)), int(rng.integers(0, 40))
        logps = random_log_probs(rng, depth, width, coarse=True)
        yield rng, build_ddtree_tree_from_topk(random_ids(rng, depth, width, vocab=9), logps, budget)


def test_the_kernel_walk_equals_the_child_map_walk_on_300_random_trees():
    depths = []
    for rng, tree in random_trees(300, seed=3):
        retrieve = compile_ddtree_retrieve(tree, len(tree.parents) + int(rng.integers(0, 5)))
        # A small vocabulary, and a liking for children, so that walks go deep.
        choices = [
            int(rng.choice(list(children))) if children and rng.random() < 0.8 else int(rng.integers(0, 9))
            for children in tree.child_maps
        ]
        accepted, bonus = follow_verified_tree(tree.child_maps, choices)
        assert kernel_walk(retrieve, choices, len(tree.parents)) == (accepted, bonus)
        depths.append(len(accepted))
    assert max(depths) > 5 and min(depths) == 1


def test_a_node_sees_its_ancestors_and_itself_and_padding_sees_itself():
    for rng, tree in random_trees(100, seed=4):
        size, width = len(tree.parents), len(tree.parents) + int(rng.integers(0, 4))
        visibility = compile_ddtree_retrieve(tree, width).visibility
        for node in range(width):
            expected, ancestor = {node}, node
            while node < size and tree.parents[ancestor] >= 0:
                ancestor = tree.parents[ancestor]
                expected.add(ancestor)
            assert set(visibility[node].nonzero().flatten().tolist()) == expected


def test_every_node_is_reached_once_and_padding_never():
    for _, tree in random_trees(100, seed=5):
        size = len(tree.parents)
        retrieve = compile_ddtree_retrieve(tree, size + 3)
        links = torch.cat((retrieve.retrieve_next_token, retrieve.retrieve_next_sibling)).tolist()
        assert sorted(link for link in links if link != -1) == list(range(1, size))
        assert retrieve.retrieve_index.tolist() == [*range(size), -1, -1, -1]
        assert retrieve.depths[size:].tolist() == [0, 0, 0]


def test_siblings_go_by_falling_weight_and_rising_index():
    for _, tree in random_trees(100, seed=6):
        retrieve = compile_ddtree_retrieve(tree)
        for node, sibling in enumerate(retrieve.retrieve_next_sibling.tolist()):
            if sibling != -1:
                assert sibling > node
                assert tree.node_logws[sibling - 1] <= tree.node_logws[node - 1]


def test_a_tree_wider_than_the_window_is_refused():
    tree = build_ddtree_tree_from_topk(torch.tensor([[1, 2]]), torch.tensor([[-1.0, -2.0]]), 2)
    with pytest.raises(ValueError, match="does not fit"):
        compile_ddtree_retrieve(tree, 2)


def test_fewer_choices_than_nodes_are_refused():
    with pytest.raises(ValueError, match="nodes"):
        follow_verified_tree([{1: 1}, {}], [1])


def test_a_batch_holds_each_tree_at_its_own_offset():
    rng = np.random.default_rng(7)
    ids = np.stack([random_ids(rng, 3, 4) for _ in range(5)])
    logps = np.stack([random_log_probs(rng, 3, 4) for _ in range(5)])
    logps[2, 0] = -np.inf  # an empty tree between full ones
    batch = build_ddtree_batch(ids, logps, budget=6)
    assert batch.token_ids.shape == (5, 7) and batch.visibility.shape == (5, 7, 7)
    for row, tree in enumerate(batch.trees()):
        one = compile_ddtree_retrieve(tree, 7)
        size = len(tree.parents)
        assert batch.retrieve_index[row, :size].tolist() == [row * 7 + node for node in range(size)]
        assert batch.retrieve_index[row, size:].eq(-1).all()
        assert torch.equal(batch.retrieve_next_token[row], one.retrieve_next_token)
        assert torch.equal(batch.visibility[row], one.visibility)
    assert [len(tree.parents) for tree in batch.trees()] == [7, 7, 1, 7, 7]
