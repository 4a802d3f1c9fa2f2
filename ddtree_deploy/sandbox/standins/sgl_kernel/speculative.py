"""Links of a tree from its mask, as NGRAM speculation asks for them."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fill positions and links from ``tree_mask``, ``[bs * n * n]`` bool, ancestors of each node set."""
    n = draft_token_num
    masks = tree_mask.view(-1)[: batch_size * n * n].view(batch_size, n, n).bool()
    for b, mask in enumerate(masks.tolist()):
        ancestors = [[j for j in range(i) if mask[i][j]] for i in range(n)]
        parents = [max(above, default=-1) for above in ancestors]
        for node in range(n):
            later = range(node + 1, n)
            positions[b * n + node] = len(ancestors[node]) + int(verified_seq_len[b])
            retrieve_index[b, node] = b * n + node
            retrieve_next_token[b, node] = next((k for k in later if node in ancestors[k]), -1)
            siblings = (k for k in later if parents[node] >= 0 and parents[k] == parents[node])
            retrieve_next_sibling[b, node] = next(siblings, -1)
