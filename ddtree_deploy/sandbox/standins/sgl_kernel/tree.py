"""Trees of draft tokens: building them from an EAGLE draft, and the greedy walk, in plain torch.

SGLang's C++ kernels spell their arguments ``retrive_*``; its CPU call sites pass them by those names.
"""

from __future__ import annotations

import torch

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Links, positions and mask of an EAGLE tree with ``draft_token_num`` nodes a request; fills the outputs.

    Args:
        parent_list: ``[bs, ...]``, for each group of ``topk`` candidates the candidate they hang from.
        selected_index: ``[bs, draft_token_num - 1]``, the candidates that became nodes, in node order.
        verified_seq_len: ``[bs]``.
        tree_mask: bool, flat; ``[n, prefix + n]`` a request in FULL_MASK, ``[n, n]`` in QLEN_ONLY.
    """
    mode = int(tree_mask_mode)
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError("the sandbox builds no bit-packed tree mask")
    offset = 0
    for b, prefix in enumerate(verified_seq_len.tolist()):
        parents = _parents(selected_index[b].tolist(), parent_list[b].tolist(), topk)
        visible = torch.zeros((draft_token_num, draft_token_num), dtype=torch.bool)
        for node in range(draft_token_num):
            visible[node, 0] = True
            ancestor, steps = node, 0
            while ancestor > 0 and steps < depth:
                visible[node, ancestor] = True
                ancestor, steps = parents[ancestor], steps + 1
            positions[b * draft_token_num + node] = prefix + steps
        retrive_index[b] = torch.arange(b * draft_token_num, (b + 1) * draft_token_num)
        for node in range(draft_token_num - 1, 0, -1):
            parent = parents[node]
            if parent >= 0:
                retrive_next_sibling[b, node] = retrive_next_token[b, parent]
                retrive_next_token[b, parent] = node
        if mode == FULL_MASK:
            visible = torch.cat((torch.ones((draft_token_num, prefix), dtype=torch.bool), visible), 1)
        tree_mask.view(-1)[offset : offset + visible.numel()] = visible.view(-1).to(tree_mask.dtype)
        offset += visible.numel()


def _parents(selected: list[int], candidates: list[int], topk: int) -> list[int]:
    """Parent node of each node; -1 for the root and for a node whose parent was not selected."""
    parents = [-1]
    for index in selected:
        group = index // topk
        if group == 0:
            parents.append(0)
        else:
            parent = candidates[group]
            parents.append(selected.index(parent) + 1 if parent in selected else -1)
    return parents


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Follow the target's own choices from the root as far as the tree has them; fills the first three.

    Args:
        predicts: ``[bs * n]``, the target's token at each accepted node, the bonus token at the last.
        accept_index: ``[bs, steps]``, accepted nodes as flat indices, the root first, -1 behind.
        accept_token_num: ``[bs]``, how many draft tokens were accepted (the root does not count).
        candidates: ``[bs, n]``, the tokens of the nodes.
        target_predict: ``[bs, n]``, the target's greedy token after each node.
    """
    chosen = target_predict.view(-1)
    for b in range(candidates.shape[0]):
        last = int(retrive_index[b, 0])
        accept_index[b, 0] = last
        accepted, node = 0, 0
        while accepted + 1 < accept_index.shape[1]:
            token = int(chosen[last])
            child = int(retrive_next_token[b, node])
            while child != -1 and int(candidates[b, child]) != token:
                child = int(retrive_next_sibling[b, child])
            if child == -1:
                break
            predicts[last] = token
            accepted, node, last = accepted + 1, child, int(retrive_index[b, child])
            accept_index[b, accepted] = last
        accept_token_num[b] = accepted
        predicts[last] = int(chosen[last])
