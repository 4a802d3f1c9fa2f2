"""DDTree (diffusion draft tree) speculative decoding for SGLang, as an out-of-tree plugin.

A DFlash block-diffusion drafter proposes one token distribution per position; a best-first
tree over those marginals is verified in one forward pass of the target model
(arXiv 2604.12989).  ``plugin.register`` is the entry point that SGLang calls; nothing in SGLang
changes behaviour until ``--speculative-algorithm DDTREE`` is given.

    ddtree_utils     the tree: build, follow, compile for the verify kernel, summarise
    tree_reference   the plain best-first search that defines the result
    tree_numba       the same search compiled, for whole batches
    kernels          the same search, its compilation and the walk as Triton kernels
    draft_topk       logits to ranked log-probs
    vocab_shards     the same over tensor-parallel ranks: they exchange candidates, not rows
    budget_schedule  the tree's size by the number of requests
    verify_input     the trees of a verify forward
    ddtree_info      what travels with a batch: draft input and verify input
    tree_batch       the trees of a batch on the host, padded; compiled code or reference
    tree_builder     which of them a worker uses, and the compilation for verify
    ddtree_mask      the tree mask in the layout of the attention backend
    ddtree_sampling  the target's own draw at every node
    ddtree_walk      the walk down each tree, and what it accepts
    ddtree_verify    the one commit after it
    ddtree_draft     the worker's draft side: loads the draft, runs its block
    ddtree_worker    draft -> tree -> verify -> commit
    metrics          a line per tree and its invariants
    prometheus       what goes to /metrics
    cuda_graphs      what the target's verify graph is captured with
    recurrent_states the states of a hybrid target, one per tree node
    self_check       random trees through the serving path, before the first request
    server_args      flags and their validation
    server_checks    what a DDTREE server refuses at start
    request_checks   what a DDTREE server refuses per request
    hooks            every place where SGLang is wrapped, with the signature it must have
    spec_algorithm   the DDTREE entry of SGLang's algorithm registry
    spec_registry    what every such entry needs, and the one that only refuses
    v1               the worker, commit and registry entry for SGLang 0.5.13
    release          which SGLang this is, and what has another name there
    loaded           a digest of each module that this process runs, for /server_info
    spec_tree        SGLang's tree constants and walk, from where the release keeps them
    plugin           the entry point
"""

import sys

from sglang_ddtree import loaded

__version__ = "0.1.0"
loaded.begin(sys._getframe().f_code)
