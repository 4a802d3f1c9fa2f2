"""A test plugin: an oracle draft, ways to break verify that must show in the output, and a look inside.

``DDTREE_CONTROLS`` names a JSON file that is read at every step, so that one server serves all cases:
``{"oracle": [[token, ...], ...], "break": "mask" | "positions" | "move" | "trust" | null, "slow": FACTOR}``.
``trust`` takes the draft's word: each node's first child is accepted, whatever the target says, so that the
answers are wrong and come fast. ``slow`` (default: 1) makes each step take so many times as long. With
``"break": "topk"`` already at the start, a hybrid target's backend is told of chains, and the self-check's
refusal is logged, no more, so that what it would have prevented can be seen. Each greedy verify logs
``controls: N columns``.
"""

import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import torch

logger = logging.getLogger(__name__)


def register():
    from sglang_ddtree.release import is_v1

    if is_v1():
        from sglang_ddtree.v1 import algorithm as spec_algorithm
        from sglang_ddtree.v1 import commit

        commit.nodes_to_keep = front_if_broken(commit.nodes_to_keep)
    else:
        from sglang_ddtree import ddtree_verify, spec_algorithm

        ddtree_verify.move_accept_tokens_to_target_kvcache = unless_broken(
            ddtree_verify.move_accept_tokens_to_target_kvcache
        )
        if settings()["break"] == "topk":
            spec_algorithm.HYBRID_TOPK = 1
    create_worker = spec_algorithm.DDTreeAlgorithm.create_worker

    def create_controlled_worker(self, server_args):
        return controlled(create_worker(self, server_args))

    spec_algorithm.DDTreeAlgorithm.create_worker = create_controlled_worker


def unless_broken(move):
    def move_unless_broken(*args, **kwargs):
        if settings()["break"] != "move":
            move(*args, **kwargs)

    return move_unless_broken


def front_if_broken(nodes_to_keep):
    """The V1 line moves no KV, it keeps the path's slots: broken, it keeps the window's first ones."""

    def keep(paths, commit_lens):
        if settings()["break"] != "move":
            return nodes_to_keep(paths, commit_lens)
        roots = paths.accept_index[:, 0].tolist()
        return torch.tensor(
            [
                root + i
                for root, length in zip(roots, commit_lens.tolist(), strict=True)
                for i in range(length)
            ]
        )

    return keep


def settings():
    return json.loads(Path(os.environ["DDTREE_CONTROLS"]).read_text())


def controlled(worker_class):
    from sglang_ddtree.ddtree_walk import walk_tree

    class ControlledWorker(worker_class):
        def forward_batch_generation(self, *args, **kwargs):
            began = time.perf_counter()
            result = super().forward_batch_generation(*args, **kwargs)
            time.sleep((time.perf_counter() - began) * (settings().get("slow", 1) - 1))
            return result

        def _draft(self, batch, *args):
            logps, ids = super()._draft(batch, *args)
            if oracle := settings()["oracle"]:
                logps[:], ids[:] = oracle_candidates(
                    batch, oracle, *ids.shape[1:], self.model_runner.model_config.vocab_size
                )
            return logps, ids

        def _build_ddtree_verify_input(self, batch, bonus_tokens, trees, *window):
            if settings()["break"] == "mask":
                trees = replace(trees, visibility=torch.ones_like(trees.visibility).tril())
            elif settings()["break"] == "positions":  # a chain's
                trees = replace(trees, depths=torch.arange(trees.depths.shape[1]).expand_as(trees.depths))
            return super()._build_ddtree_verify_input(batch, bonus_tokens, trees, *window)

        def prewarm_sampling(self):
            if settings()["break"] != "topk":
                return super().prewarm_sampling()
            from sglang_ddtree.self_check import SelfCheckError

            try:
                super().prewarm_sampling()
            except SelfCheckError as refusal:
                logger.info("controls: started all the same: %s", refusal)
                self.model_runner.req_to_token_pool.clear()
                self.model_runner.token_to_kv_pool_allocator.clear()

        def _greedy_tree_paths(self, verify_input, logits):
            logger.info("controls: %d columns", logits.shape[-1])
            choices, paths = super()._greedy_tree_paths(verify_input, logits)
            if settings()["break"] == "trust":
                choices = first_children(verify_input, choices)
                paths = walk_tree(verify_input, choices, max_nodes=self.block_size)
            return choices, paths

    return ControlledWorker


def first_children(verify_input, choices):
    """At each node its first child's token, the draft's favourite; at a leaf the target's choice."""
    child = verify_input.retrieve_next_token
    tokens = verify_input.draft_token.view_as(choices).gather(1, child.clamp(min=0))
    return torch.where(child >= 0, tokens, choices)


def oracle_candidates(batch, sequences, depth, width, vocab_size):
    """The known continuation at rank 0 or 1 in turn, so that sibling branches are accepted."""
    logps = torch.full((len(batch.reqs), depth, width), -4.0)
    logps[..., 0], logps[..., 1] = -0.3, -1.6
    ids = torch.empty(len(batch.reqs), depth, width, dtype=torch.int64)
    for row, req in enumerate(batch.reqs):
        done = list(req.output_ids)
        known = next((one[len(done) :] for one in sequences if one[: len(done)] == done), [])
        for level in range(depth):
            token = known[level] if level < len(known) else 0
            candidates = [(token + 1 + other) % vocab_size for other in range(width - 1)]  # distinct decoys
            candidates.insert((level + len(done)) % 2, token)
            ids[row, level] = torch.tensor(candidates)
    return logps, ids
