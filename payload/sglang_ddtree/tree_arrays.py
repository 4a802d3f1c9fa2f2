"""The output of every batched builder."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class TreeArrays(NamedTuple):
    """``bs`` trees of at most ``N`` nodes, as ``tree_batch.DDTreeBatch`` describes them."""

    num_nodes: np.ndarray
    parents: np.ndarray
    ranks: np.ndarray
    depths: np.ndarray
    scores: np.ndarray
    tokens: np.ndarray
    next_token: np.ndarray
    next_sibling: np.ndarray
    visibility: np.ndarray
