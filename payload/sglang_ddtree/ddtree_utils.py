"""The draft tree: build it, walk it, compile it for the verify forward, summarise it.

Everything here is host-side and has no SGLang imports, so it can be checked anywhere torch runs.
Nodes are numbered in the order in which the best-first search takes them; node 0 is the root, which
holds the last committed ("bonus") token.  Per-node arrays leave the root out, ``parents`` and
``child_maps`` include it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from sglang_ddtree.draft_topk import draft_log_probs, stable_topk
from sglang_ddtree.tree_reference import build_raw_tree

ROOT = 0
NO_NODE = -1  # "none" in parents and in every retrieve_* link; token id 0 is an ordinary token


@dataclass(frozen=True)
class DDTree:
    """A draft tree of ``n`` draft nodes under the root.

    Attributes:
        parents: ``n + 1`` node indices; entry 0 is the root's, ``-1``.
        node_token_ids: ``[n]`` int64.
        node_depths: ``[n]`` int64, 1 for a child of the root.
        node_logws: ``[n]`` float32 or float64, log-prob of the path from the root to the node.
        node_ranks: ``[n]`` int64, rank of the node's token within the candidates of its depth.
        child_maps: ``n + 1`` maps from token id to child node, falling log-prob in insertion order.
    """

    parents: list[int]
    node_token_ids: torch.Tensor
    node_depths: torch.Tensor
    node_logws: torch.Tensor
    node_ranks: torch.Tensor
    child_maps: list[dict[int, int]] = field(repr=False)

    @property
    def num_draft_nodes(self) -> int:
        return len(self.parents) - 1


@dataclass(frozen=True)
class DDTreeRetrieve:
    """A tree in the arrays that SGLang's tree-verify kernels and attention backends read.

    All arrays have ``N = num_nodes`` rows; rows past the tree are padding that no link reaches.

    Attributes:
        retrieve_index: ``[N]`` int64, the node's own index, ``-1`` for padding.
        retrieve_next_token: ``[N]`` int64, first child, ``-1`` for none.
        retrieve_next_sibling: ``[N]`` int64, next child of the same parent, ``-1`` for none.
        token_ids: ``[N]`` int64; entry 0 is left 0 for the root's token, padding is 0.
        depths: ``[N]`` int64, position of the node minus the prefix length; 0 for root and padding.
        visibility: ``[N, N]`` bool, row attends to column: ancestors and self; padding to itself only.
    """

    retrieve_index: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor
    token_ids: torch.Tensor
    depths: torch.Tensor
    visibility: torch.Tensor


@dataclass(frozen=True)
class DDTreeSummary:
    """Shape of one tree and what its verify accepted.

    ``actual_nodes``, ``max_depth``, ``mean_depth`` and ``leaf_count`` leave the root out;
    ``branch_count`` counts nodes with two or more children, the root included.
    ``accepted_node_count`` includes the root, the other two ``accepted_*`` count drafts only.
    """

    budget: int
    actual_nodes: int
    max_depth: int
    mean_depth: float
    leaf_count: int
    branch_count: int
    accepted_node_count: int
    accepted_draft_count: int
    accepted_path_depth: int
    bonus_token_id: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def build_ddtree_tree_from_logits(
    draft_logits: torch.Tensor,
    budget: int,
    topk_cap: int | None = None,
    vocab_size: int | None = None,
) -> DDTree:
    """Best-first tree over the draft's per-position marginals.

    Log-probs are normalised over the whole vocabulary before the cut to ``topk_cap``.

    Args:
        draft_logits: ``[L, V]``; row ``d`` is the draft's distribution of the token at depth ``d + 1``.
        budget: draft nodes at most; the root is not counted.
        topk_cap: candidates kept per position (default: as many as the budget can use).
        vocab_size: real vocabulary size, if ``V`` is padded.

    Returns:
        The tree, of ``min(budget, number of possible nodes)`` draft nodes.

    Raises:
        ValueError: wrong rank, negative budget, or a cap below 1.
    """
    if draft_logits.dim() != 2:
        raise ValueError(f"draft_logits must be [L, V], got shape {tuple(draft_logits.shape)}")
    if topk_cap is not None and topk_cap < 1:
        raise ValueError(f"topk_cap must be at least 1, got {topk_cap}")
    logps = draft_log_probs(draft_logits, vocab_size)
    # Rank r of a row can only be used once ranks 0..r-1 are nodes: a cap above the budget changes nothing.
    keep = max(1, min(budget, logps.shape[-1] if topk_cap is None else min(topk_cap, logps.shape[-1])))
    if logps.shape[0] == 0 or logps.shape[1] == 0:
        keep = 0
        top, ids = logps[:, :0], torch.zeros_like(logps[:, :0], dtype=torch.int64)
    else:
        top, ids = stable_topk(logps, keep)
    return build_ddtree_tree_from_topk(ids, top, budget)


def build_ddtree_tree_from_topk(
    topk_ids: torch.Tensor | np.ndarray,
    topk_logps: torch.Tensor | np.ndarray,
    budget: int,
) -> DDTree:
    """Best-first tree from ranked candidates; see :func:`build_ddtree_tree_from_logits`.

    Args:
        topk_ids: ``[L, k]`` integer token ids, distinct within a row.
        topk_logps: ``[L, k]`` float32 or float64 log-probs (half precision is widened to float32),
            normalised over the whole vocabulary and non-increasing along each row.  A row's candidates
            end at its first entry that is not finite; a row without candidates ends the tree.
        budget: draft nodes at most; the root is not counted.

    Returns:
        The tree, of ``min(budget, number of possible nodes)`` draft nodes.

    Raises:
        ValueError: shapes differ, a row rises, a log-prob is above 0, or a token repeats within a row.
    """
    ids, logps = _to_numpy(topk_ids).astype(np.int64), _to_numpy(topk_logps)
    if logps.dtype not in (np.float32, np.float64):
        logps = logps.astype(np.float32)
    widths = _usable_widths(ids, logps)
    if budget < 0:
        raise ValueError(f"budget must not be negative, got {budget}")

    raw = build_raw_tree(logps, budget, widths)
    depths, ranks = np.array(raw.depths, dtype=np.int64), np.array(raw.ranks, dtype=np.int64)
    return ddtree_from_arrays(
        parents=raw.parents,
        token_ids=ids[depths - 1, ranks],
        depths=depths,
        logws=np.array(raw.scores, dtype=logps.dtype),
        ranks=ranks,
    )


def ddtree_from_arrays(
    *, parents: list[int], token_ids: np.ndarray, depths: np.ndarray, logws: np.ndarray, ranks: np.ndarray
) -> DDTree:
    """A tree from its per-node arrays (``parents`` with the root, the rest without); see :class:`DDTree`."""
    child_maps: list[dict[int, int]] = [{} for _ in parents]
    for node, (parent, token) in enumerate(zip(parents[1:], token_ids.tolist(), strict=True), start=1):
        child_maps[parent][token] = node
    return DDTree(
        parents=parents,
        node_token_ids=torch.from_numpy(token_ids),
        node_depths=torch.from_numpy(depths),
        node_logws=torch.from_numpy(logws),
        node_ranks=torch.from_numpy(ranks),
        child_maps=child_maps,
    )


def follow_verified_tree(
    child_maps: Sequence[dict[int, int]], target_token_ids: Sequence[int] | torch.Tensor
) -> tuple[list[int], int]:
    """Walk from the root while the target's choice at a node is one of its children.

    Args:
        child_maps: per node, token id to child node.
        target_token_ids: the target's own choice at every node (argmax, or a draw), ``n + 1`` entries.

    Returns:
        ``(accepted, bonus)``: the accepted nodes, root first, and the first choice that is no child.

    Raises:
        ValueError: fewer choices than nodes.
    """
    choices = [int(token) for token in target_token_ids]
    if len(choices) < len(child_maps):
        raise ValueError(f"{len(child_maps)} nodes but only {len(choices)} target tokens")
    node, accepted = ROOT, [ROOT]
    while (child := child_maps[node].get(choices[node])) is not None:
        accepted.append(child)
        node = child
    return accepted, choices[node]


def compile_ddtree_retrieve(tree: DDTree, num_nodes: int | None = None) -> DDTreeRetrieve:
    """Encode a tree for the verify forward, padded to ``num_nodes`` rows.

    Args:
        tree: the draft tree.
        num_nodes: rows, root included (default: exactly the tree).

    Raises:
        ValueError: the tree has more nodes than ``num_nodes``.
    """
    size = len(tree.parents)
    width = size if num_nodes is None else num_nodes
    if width < size:
        raise ValueError(f"a tree of {size} nodes does not fit {width} rows")
    next_token = np.full(width, NO_NODE, dtype=np.int64)
    next_sibling = np.full(width, NO_NODE, dtype=np.int64)
    visibility = np.eye(width, dtype=bool)
    for node in range(1, size):
        visibility[node, :size] |= visibility[tree.parents[node], :size]
    # Backwards, so that each parent's list starts at its heaviest child: siblings rise in node order.
    for node in range(size - 1, 0, -1):
        parent = tree.parents[node]
        next_sibling[node] = next_token[parent]
        next_token[parent] = node
    index = torch.full((width,), NO_NODE, dtype=torch.int64)
    index[:size] = torch.arange(size)
    token_ids = torch.zeros(width, dtype=torch.int64)
    token_ids[1:size] = tree.node_token_ids
    depths = torch.zeros(width, dtype=torch.int64)
    depths[1:size] = tree.node_depths
    return DDTreeRetrieve(
        retrieve_index=index,
        retrieve_next_token=torch.from_numpy(next_token),
        retrieve_next_sibling=torch.from_numpy(next_sibling),
        token_ids=token_ids,
        depths=depths,
        visibility=torch.from_numpy(visibility),
    )


def summarize_ddtree(
    tree: DDTree, budget: int, accepted: Sequence[int], bonus_token_id: int
) -> DDTreeSummary:
    """Shape of ``tree`` and of the path accepted in it; see :class:`DDTreeSummary`."""
    depths = tree.node_depths.tolist()
    children = [len(child_map) for child_map in tree.child_maps]
    return DDTreeSummary(
        budget=int(budget),
        actual_nodes=len(depths),
        max_depth=max(depths, default=0),
        # Python ints: a float32 mean would print 1.7999999523 for 1.8.
        mean_depth=sum(depths) / len(depths) if depths else 0.0,
        leaf_count=sum(count == 0 for count in children[1:]),
        branch_count=sum(count >= 2 for count in children),
        accepted_node_count=len(accepted),
        accepted_draft_count=len(accepted) - 1,
        accepted_path_depth=depths[accepted[-1] - 1] if accepted and accepted[-1] != ROOT else 0,
        bonus_token_id=int(bonus_token_id),
    )


def assert_prefix_closed(tree: DDTree) -> None:
    """Raise AssertionError unless ``tree`` is a prefix-closed set of rank paths in a legal order.

    Every node has its parent and its elder sibling before it, no (parent, token) repeats, siblings do
    not rise in weight, and the links agree with the depths.
    """
    parents, depths = tree.parents, [0, *tree.node_depths.tolist()]
    ranks, tokens = tree.node_ranks.tolist(), tree.node_token_ids.tolist()
    logws = [0.0, *tree.node_logws.tolist()]
    assert parents[0] == NO_NODE, f"the root's parent is {parents[0]}, not {NO_NODE}"
    assert len(parents) == len(depths) == len(tree.child_maps), "arrays differ in length"
    last_child: dict[int, int] = {}
    children_seen = [0] * len(parents)
    for node in range(1, len(parents)):
        parent = parents[node]
        assert 0 <= parent < node, f"node {node} precedes its parent {parent}"
        assert depths[node] == depths[parent] + 1, f"node {node} is not one below its parent {parent}"
        assert logws[node] <= logws[parent], f"node {node} outweighs its parent {parent}"
        assert ranks[node - 1] == children_seen[parent], f"node {node} lacks an elder sibling"
        elder = last_child.get(parent)
        assert elder is None or logws[node] <= logws[elder], (
            f"node {node} outweighs its elder sibling {elder}"
        )
        assert tree.child_maps[parent].get(tokens[node - 1]) == node, f"node {node}: (parent, token) repeats"
        last_child[parent] = node
        children_seen[parent] += 1
    assert children_seen == [len(child_map) for child_map in tree.child_maps], "child maps hold other nodes"


def _to_numpy(values: torch.Tensor | np.ndarray) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
    return np.asarray(values)


def _usable_widths(ids: np.ndarray, logps: np.ndarray) -> np.ndarray:
    """Candidates per row up to the first that is not finite; raise ValueError on a malformed row."""
    if ids.shape != logps.shape or ids.ndim != 2:
        raise ValueError(f"need ids and log-probs of one shape [L, k], got {ids.shape} and {logps.shape}")
    finite = np.isfinite(logps)
    widths = np.where(finite.all(axis=1), logps.shape[1], finite.argmin(axis=1) if logps.shape[1] else 0)
    used = np.arange(logps.shape[1])[None, :] < widths[:, None]
    if bool((logps > 0).any(where=used)):
        raise ValueError("log-probs must not be above 0")
    with np.errstate(invalid="ignore"):
        if bool((np.diff(logps, axis=1) > 0).any(where=used[:, 1:])):
            raise ValueError("log-probs must not rise along a row")
    ordered = np.sort(np.where(used, ids, -1 - np.arange(logps.shape[1])[None, :]), axis=1)
    if bool((np.diff(ordered, axis=1) == 0).any()):
        raise ValueError("a token repeats within a row of candidates")
    return widths
