"""Random draft distributions, and two independent definitions to hold the builders against."""

import itertools

import numpy as np
import torch


def random_log_probs(rng, depth, width, dtype=np.float32, coarse=False):
    """``[depth, width]`` falling log-probs; ``coarse`` rounds logits to bf16-like steps so that they tie."""
    logits = rng.normal(size=(depth, width)) * 2
    if coarse:
        logits = np.round(logits * 2) / 2
    logps = torch.log_softmax(torch.from_numpy(logits.astype(dtype)), dim=-1)
    return logps.sort(dim=-1, descending=True).values.numpy()


def random_ids(rng, depth, width, vocab=50):
    return np.stack([rng.permutation(vocab)[:width] for _ in range(depth)]).astype(np.int64)


def all_rank_paths(logps, widths=None):
    """Every rank path with its score, heaviest first, ties in lexicographic order: brute force."""
    depth, width = logps.shape
    widths = [width] * depth if widths is None else widths
    paths = []
    for length in range(1, depth + 1):
        if widths[length - 1] == 0:
            break
        for path in itertools.product(*(range(w) for w in widths[:length])):
            score = logps.dtype.type(0)
            for level, rank in enumerate(path):
                score = score + logps[level, rank]
            paths.append((-float(score), path))
    return [(path, -negative) for negative, path in sorted(paths)]


def rank_paths(tree):
    """The rank path of every draft node of a DDTree, in node order."""
    paths = [()]
    for node in range(1, len(tree.parents)):
        paths.append((*paths[tree.parents[node]], int(tree.node_ranks[node - 1])))
    return paths[1:]


def kernel_walk(retrieve, choices, max_nodes):
    """Greedy tree verification over the retrieve arrays, written from the kernel's contract alone."""
    accepted, node = [0], 0
    while len(accepted) < max_nodes:
        child = int(retrieve.retrieve_next_token[node])
        while child != -1 and int(retrieve.token_ids[child]) != choices[node]:
            child = int(retrieve.retrieve_next_sibling[child])
        if child == -1:
            break
        accepted.append(child)
        node = child
    return accepted, choices[node]
