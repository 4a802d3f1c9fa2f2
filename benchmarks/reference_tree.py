"""The cost model that the payload's builders are measured against: DDTree in plain Python.

Ours, plain on purpose: a heap of rank paths, a boolean ancestor mask, first-child and next-sibling links.
`build(lp, ids, budget)` takes L x K lists (log-probs falling in each row) and returns
(parents, tokens, depths, scores, mask, next_token, next_sibling); arrays with the root have budget + 1 rows.
"""

import heapq

import numpy as np


def build(lp, ids, budget):
    depth_count, rank_count = len(lp), len(lp[0])
    parents, tokens, depths, scores = [-1], [], [], []
    heap = [(-lp[0][0], (0,), 0)]
    while heap and len(tokens) < budget:
        negative, path, parent = heapq.heappop(heap)
        depth, rank, node = len(path) - 1, path[-1], len(parents)
        parents.append(parent)
        tokens.append(ids[depth][rank])
        depths.append(depth + 1)
        scores.append(-negative)
        base = 0.0 if parent == 0 else scores[parent - 1]
        if rank + 1 < rank_count:
            heapq.heappush(heap, (-(base + lp[depth][rank + 1]), (*path[:-1], rank + 1), parent))
        if depth + 1 < depth_count:
            heapq.heappush(heap, (-(scores[-1] + lp[depth + 1][0]), (*path, 0), node))
    n = len(parents)
    mask = np.zeros((n, n), dtype=bool)
    for i in range(n):
        if i:
            mask[i] = mask[parents[i]]
        mask[i, i] = True
    first, sibling = [-1] * n, [-1] * n
    for i in range(n - 1, 0, -1):
        sibling[i] = first[parents[i]]
        first[parents[i]] = i
    return parents, tokens, depths, scores, mask, first, sibling


if __name__ == "__main__":

    def log_softmax(row):
        top = max(row)
        total = np.log(sum(np.exp(np.array(row) - top))) + top
        return [x - total for x in row]

    p, t, d, *_ = build([log_softmax(r) for r in ([5, 4, 1], [4, 3, 2], [3, 2, 1])], [[0, 1, 2]] * 3, 5)
    assert (p, t, d) == ([-1, 0, 1, 2, 0, 1], [0, 0, 0, 1, 1], [1, 2, 3, 1, 2]), (p, t, d)
    p, t, d, *_ = build([log_softmax(r) for r in ([5, 4, 1], [4, 2, 1])], [[0, 1, 2]] * 2, 4)
    assert (p, t, d) == ([-1, 0, 1, 0, 3], [0, 0, 1, 0], [1, 2, 1, 2]), (p, t, d)
    print("both examples come out")
