"""The Triton kernels, run by Triton's interpreter, against the plain reference and brute force.

The interpreter's cost is per operation, not per tree: trees of one shape go into one launch.
"""

import os
import sys

import numpy as np
import pytest
import torch
from sglang_ddtree import kernels, tree_batch
from sglang_ddtree.ddtree_utils import (
    assert_prefix_closed,
    build_ddtree_tree_from_topk,
    follow_verified_tree,
    summarize_ddtree,
)
from sglang_ddtree.draft_topk import device_topk, draft_log_probs, stable_topk
from sglang_ddtree.kernels.build import DeviceTrees, build_trees, why_not
from sglang_ddtree.kernels.compile import compile_trees
from sglang_ddtree.kernels.walk import walk_trees
from sglang_ddtree.tree_batch import build_ddtree_batch
from trees import all_rank_paths, random_ids, random_log_probs, rank_paths

# (trees, L, k, budget): 500 in all, small shapes with a few large ones.
SHAPES = [
    (120, 4, 4, 9), (100, 7, 8, 16), (90, 1, 6, 5), (80, 9, 5, 20), (60, 16, 3, 24),
    (30, 15, 16, 40), (18, 3, 40, 33), (2, 15, 32, 130),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def interpreted():
    assert os.environ.get("TRITON_INTERPRET") == "1" and kernels.is_interpreted(), (
        "set TRITON_INTERPRET=1 before Python starts"
    )


@pytest.fixture(autouse=True)
def reference_builder(monkeypatch):
    monkeypatch.setattr(tree_batch, "select_builder", lambda *_: tree_batch.build_with_reference)


def hostile_batch(rng, batch, depth, width):
    """Candidates with every trouble: ties, rows that end early or are empty, certain tokens, token 0."""
    ids = np.stack([random_ids(rng, depth, width) for _ in range(batch)])
    logps = np.stack([random_log_probs(rng, depth, width, coarse=row % 3 > 0) for row in range(batch)])
    for row in range(batch):
        level, rank = int(rng.integers(depth)), int(rng.integers(width))
        trouble = row % 6
        if trouble == 0:
            logps[row, level, rank:] = rng.choice([-np.inf, np.nan])
        elif trouble == 1:
            logps[row, level] = -np.inf
        elif trouble == 2:
            logps[row, level] = [0.0, *[-np.inf] * (width - 1)]  # p = 1: as heavy as its parent
        elif trouble == 3:
            logps[row] = logps[row, :1, :1]  # all equal: rank paths alone decide
        elif trouble == 4:
            logps[row, :2] = -3e38  # a path through both overflows to -inf, and is still a path
        ids[row, level, 0] = 0
        ids[row, level, 1:][ids[row, level, 1:] == 0] = 51
    return ids, logps


@pytest.fixture(scope="module")
def cases():
    """Per shape: ids, log-probs, budget, the reference's trees and the kernel's."""
    rng, built = np.random.default_rng(0), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_batch, "select_builder", lambda *_: tree_batch.build_with_reference)
        for batch, depth, width, budget in SHAPES:
            ids, logps = hostile_batch(rng, batch, depth, width)
            reference = build_ddtree_batch(ids, logps, budget)
            built.append((reference, build_trees(torch.from_numpy(ids), torch.from_numpy(logps), budget)))
    assert sum(shape[0] for shape in SHAPES) == 500
    return built


def assert_same_trees(ours: DeviceTrees, reference):
    for name in ("num_nodes", "parents", "ranks", "depths", "token_ids", "scores"):
        assert torch.equal(getattr(ours, name), getattr(reference, name)), name


def test_the_built_trees_equal_the_reference_on_500_random_trees(cases):
    for reference, trees in cases:
        assert_same_trees(trees, reference)
    scores = torch.cat([reference.scores.flatten() for reference, _ in cases])
    sizes = torch.cat([reference.num_nodes for reference, _ in cases])
    assert scores.isneginf().any() and (sizes == 1).any(), "the troubles did not reach the trees"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_trees_of_half_precision_logits_equal_the_reference(dtype):
    logits = torch.randn(40 * 5, 60, generator=torch.Generator().manual_seed(1)).mul(2).to(dtype)
    logps, ids = (one.view(40, 5, -1) for one in stable_topk(draft_log_probs(logits, 50), 8))
    reference = build_ddtree_batch(ids.numpy(), logps.numpy(), 20)
    assert_same_trees(build_trees(ids, logps, 20), reference)
    ties = (reference.scores[:, 1:, None] == reference.scores[:, None, 1:]).sum() - reference.scores[
        :, 1:
    ].numel()
    assert dtype != torch.bfloat16 or ties > 20


def test_double_precision_and_the_largest_ranks():
    rng = np.random.default_rng(2)
    ids = random_ids(rng, 2, 256, vocab=300)[None]
    logps = np.stack([random_log_probs(rng, 2, 256, np.float64, coarse=True)])
    logps[0, 1:] -= 40  # siblings first: ranks run up to 255
    trees = build_trees(torch.from_numpy(ids), torch.from_numpy(logps), 260)
    assert_same_trees(trees, build_ddtree_batch(ids, logps, 260))
    assert int(trees.ranks.max()) == 255


def test_the_built_trees_equal_brute_force_in_order_on_500_small_cases():
    rng, count = np.random.default_rng(3), 0
    for depth, width, budget in ((1, 4, 5), (2, 3, 14), (3, 3, 20), (4, 2, 9), (4, 4, 12)):
        ids = np.stack([random_ids(rng, depth, width) for _ in range(100)])
        logps = np.stack([random_log_probs(rng, depth, width, coarse=row % 2 == 0) for row in range(100)])
        trees = build_trees(torch.from_numpy(ids), torch.from_numpy(logps), budget)
        for tree, row in zip(trees.trees(), logps, strict=True):
            assert_prefix_closed(tree)
            found = list(zip(rank_paths(tree), tree.node_logws.tolist(), strict=True))
            assert found == all_rank_paths(row)[:budget]
            count += 1
    assert count == 500


def test_both_published_examples_come_out_exactly():
    def built(logits, budget):
        logps, ids = stable_topk(draft_log_probs(torch.tensor(logits)), 3)
        return build_trees(ids[None], logps[None], budget).trees()[0]

    tree = built([[5.0, 4, 1], [4, 3, 2], [3, 2, 1]], 5)
    assert tree.parents == [-1, 0, 1, 2, 0, 1]
    assert tree.node_token_ids.tolist() == [0, 0, 0, 1, 1]
    assert tree.node_depths.tolist() == [1, 2, 3, 1, 2]
    walk = follow_verified_tree(tree.child_maps, [int(tree.node_token_ids[0]), 123, 456, 789, 111, 222])
    assert summarize_ddtree(tree, 5, *walk).to_dict() == {
        "budget": 5, "actual_nodes": 5, "max_depth": 3, "mean_depth": 1.8, "leaf_count": 3,
        "branch_count": 2, "accepted_node_count": 2, "accepted_draft_count": 1,
        "accepted_path_depth": 1, "bonus_token_id": 123,
    }  # fmt: skip

    tree = built([[5.0, 4, 1], [4, 2, 1]], 4)
    assert (tree.parents, tree.node_token_ids.tolist()) == ([-1, 0, 1, 0, 3], [0, 0, 1, 0])
    assert follow_verified_tree(tree.child_maps, [0, 777, 888, 999, 111]) == ([0, 1], 777)


@pytest.mark.parametrize(
    ("shape", "budget"), [((2, 0, 3), 4), ((2, 3, 0), 4), ((2, 3, 4), 0), ((0, 3, 4), 4)]
)
def test_without_candidates_or_budget_the_root_stands_alone(shape, budget):
    ids, logps = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    trees = build_trees(ids, logps, budget)
    assert trees.num_nodes.tolist() == [1] * shape[0]
    compiled = compile_trees(trees, torch.arange(shape[0]), torch.ones(shape[0]), shape[0], full_mask=False)
    assert compiled.custom_mask.view(shape[0], budget + 1, budget + 1).sum(-1).eq(1).all()


@pytest.mark.parametrize(("depth", "width", "budget"), [(17, 2, 4), (2, 257, 4), (2, 2, 1025)])
def test_beyond_its_limits_the_kernel_refuses_and_says_which(depth, width, budget):
    shape = (1, depth, width)
    with pytest.raises(ValueError, match="exceed the Triton kernel's"):
        build_trees(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape), budget)
    assert str(max(depth, width, budget)) in why_not(depth, width, budget)
    assert why_not(16, 256, 1024) is None


@pytest.mark.parametrize("full_mask", [False, True], ids=["QLEN_ONLY", "FULL_MASK"])
def test_the_compiled_trees_equal_the_reference_on_500_random_trees(cases, full_mask):
    from sglang_ddtree.ddtree_mask import flatten_tree_mask
    from sglang_ddtree.spec_tree import TreeMaskMode

    layout = TreeMaskMode.FULL_MASK if full_mask else TreeMaskMode.QLEN_ONLY
    rng = np.random.default_rng(4)
    for reference, trees in cases:
        batch = len(reference.parents)
        prefix = torch.from_numpy(rng.integers(0, 40, batch))
        roots = torch.from_numpy(rng.integers(0, 50, batch))
        ours = compile_trees(trees, roots, prefix.to(torch.int32), int(prefix.sum()), full_mask=full_mask)
        tokens = reference.token_ids.clone()
        tokens[:, 0] = roots
        assert torch.equal(ours.draft_token, tokens.flatten())
        assert torch.equal(ours.positions, (prefix[:, None] + reference.depths).flatten())
        for name in ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling"):
            assert torch.equal(getattr(ours, name), getattr(reference, name)), name
        assert torch.equal(ours.custom_mask, flatten_tree_mask(reference.visibility, prefix, layout))


def test_the_walk_equals_the_child_map_walk_on_500_random_trees(cases):
    rng, lengths = np.random.default_rng(5), []
    for reference, trees in cases:
        batch, nodes = reference.parents.shape
        max_nodes = int(reference.depths.max()) + 1
        choices = torch.from_numpy(rng.integers(0, 50, (batch, nodes)))
        maps = [tree.child_maps for tree in reference.trees()]
        for row, child_maps in enumerate(maps):
            for node, children in enumerate(child_maps):
                if children and rng.random() < 0.8:
                    choices[row, node] = int(rng.choice(list(children)))
        paths = walk_trees(trees.parents, reference.token_ids.flatten(), choices, max_nodes)
        for row, child_maps in enumerate(maps):
            accepted, bonus = follow_verified_tree(child_maps, choices[row])
            drafts = len(accepted) - 1
            padding = [-1] * (max_nodes - len(accepted))
            assert paths.accept_index[row].tolist() == [row * nodes + node for node in accepted] + padding
            tokens = [int(choices[row, node]) for node in accepted]
            assert paths.tokens[row].tolist() == tokens + [0] * len(padding)
            assert (int(paths.num_correct_drafts[row]), int(paths.commit_lens[row])) == (drafts, drafts + 1)
            assert int(paths.bonus_tokens[row]) == bonus
            following = [int(choices[row, node]) if node in accepted else 0 for node in range(nodes)]
            assert paths.following_tokens[row * nodes :][:nodes].tolist() == following
            lengths.append(drafts)
    assert len(lengths) == 500 and max(lengths) > 6 and min(lengths) == 0


def test_the_sampling_walk_has_the_targets_law():
    """Draws at every node by the target's law, walked: the joint law of two tokens, by chi-square."""
    from chi_square import chi_square

    draws, vocab = 40_000, 5
    generator = torch.Generator().manual_seed(6)
    law = torch.softmax(torch.randn(1 + vocab, vocab, generator=generator) * 1.2, -1)
    # Root with three children, the first of which has two: the law of a node depends on its token alone.
    ids, logps = torch.tensor([[0, 3, 4], [2, 1, 0]]), torch.tensor([[-0.5, -1.2, -2.5], [-0.6, -1.0, -9.0]])
    tree = build_ddtree_tree_from_topk(ids, logps, 5)
    assert len(tree.child_maps[0]) >= 2 and len(tree.child_maps[1]) >= 2
    nodes = len(tree.parents)
    rows = torch.cat((torch.tensor([0]), 1 + tree.node_token_ids))
    choices = torch.multinomial(law[rows].repeat(draws, 1), 1, generator=generator).view(draws, nodes)
    parents = torch.tensor(tree.parents).repeat(draws, 1)
    tokens = torch.cat((torch.tensor([0]), tree.node_token_ids)).repeat(draws)

    def statistic(choices):
        paths = walk_trees(parents, tokens, choices, 3)
        first, second = paths.tokens[:, 0], paths.tokens[:, 1].clone()
        ended = paths.commit_lens == 1  # the next step would draw the second token
        second[ended] = torch.multinomial(law[1 + first[ended]], 1, generator=generator).squeeze(1)
        counts = torch.bincount(first * vocab + second, minlength=vocab * vocab).tolist()
        return chi_square(
            counts, [float(law[0, a] * law[1 + a, b]) for a in range(vocab) for b in range(vocab)]
        )

    value, critical = statistic(choices)
    assert value < critical
    # A wrong rule: the root's draw is taken again if it is no child.
    again = torch.multinomial(law[0], draws, replacement=True, generator=generator)
    is_child = torch.isin(choices[:, 0], ids[0])
    choices[:, 0] = torch.where(is_child, choices[:, 0], again)
    value, critical = statistic(choices)
    assert value > critical


def test_topk_without_a_host_sync_equals_the_stable_topk():
    generator = torch.Generator().manual_seed(7)
    for vocab, k in ((50, 8), (300, 32), (9, 9), (1, 1)):
        coarse = (torch.randn(60, vocab, generator=generator) * 4).round() / 4
        coarse[0], coarse[1, vocab // 2 :], coarse[2] = 0.0, -0.0, -coarse[2].abs()
        ours, theirs = device_topk(coarse, k), stable_topk(coarse, k)
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    values = torch.full((1, 6), -torch.inf)
    values[0, 4] = -1.0
    assert device_topk(values, 3)[0].tolist() == [[-1.0, -torch.inf, -torch.inf]]


def test_the_kernels_import_no_sglang():
    code = (
        "import sys\nfrom sglang_ddtree.kernels import build, compile, walk\n"
        "bad = [m for m in sys.modules if m == 'sglang' or m.startswith('sglang.')]\nassert not bad, bad"
    )
    import subprocess

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
