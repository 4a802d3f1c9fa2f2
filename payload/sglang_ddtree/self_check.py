"""The worker proves itself at every start: random trees through the very path that will serve.

A verify forward under a wrong mask, wrong positions or a graph that was captured causally gives no error,
only wrong tokens.  So before the first request, the logits at the nodes of random trees, by the worker's own
verify path (its attention backend; CUDA graph or eager, whichever will serve), are compared with those of
each node's root path run alone: an ordinary prefill, whose mask no tree can spoil.

What it does not prove: that the draft is good (that costs speed, never a token), nor the commit after verify.
"""

from __future__ import annotations

import logging
import time
from array import array
from math import isfinite
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_ddtree.budget_schedule import TreeShape
from sglang_ddtree.recurrent_states import state_dtypes
from sglang_ddtree.release import is_v1, keeps_recurrent_states

logger = logging.getLogger(__name__)

# Of the root mean square of a node's centred logits, by the roughest type that the target computes in or
# keeps recurrent states in. docs/payload.md has the figures behind these.
TOLERANCE = {torch.float32: 0.01, torch.float16: 0.05, torch.bfloat16: 0.1}
# In half precision, recurrences and routers that pick among experts make much of a little rounding at some
# nodes, and at those below them: so many of all nodes may be off.
STRAYS = 1 / 8
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names in model configurations
PREFIX_LENS = (5, 12)  # two requests of different lengths, where the server runs two
NODES_PER_REQUEST = 64  # larger trees are checked at so many nodes, evenly spread
REFERENCE_ROWS = 32  # prefills at a time, at most


class SelfCheckError(RuntimeError):
    """The serving path does not compute what each path alone does; the text holds the figures."""


class NodeLogits(NamedTuple):
    """The nodes checked, one row each.

    Attributes:
        names: ``"request r, node n"``.
        kin: (request, depth, token): nodes alike in all but their ancestors.
        served, alone: ``[R, V]`` float32 logits by the serving path, and by the root path run alone.
    """

    names: list[str]
    kin: list[tuple[int, int, int]]
    served: torch.Tensor
    alone: torch.Tensor


class Verdict(NamedTuple):
    """What the comparison says.

    Attributes:
        worst: the largest difference, relative to the size of the node's logits; strays left out.
        worst_stray: the largest of all.
        where: at which node the worst is.
        contrast: how far apart nodes are that differ in their ancestors alone; None if there are none.
        tolerance: of the model's dtype.
    """

    worst: float
    worst_stray: float
    where: str
    contrast: float | None
    tolerance: float

    @property
    def problem(self) -> str | None:
        if not isfinite(self.worst_stray):
            return f"a node's logits are no numbers ({self.where} or a worse one)"
        if self.worst > self.tolerance:
            return (
                f"a node's logits differ from those of its path alone by {self.worst:.4g} of their size "
                f"({self.where}); {self.tolerance:g} is allowed"
            )
        if self.contrast is not None and not self.contrast > self.tolerance:
            return (
                f"ancestors change this model's logits by only {self.contrast:.4g} of their size: a wrong "
                f"mask would pass within the {self.tolerance:g} that is allowed"
            )
        return None


def check_verify_path(worker: Any) -> None:
    """Run the check on a worker whose pools are still empty.

    Args:
        worker: a ``DDTreeWorker`` of either line; asked for its ``tree_shapes``, ``verify_candidates``,
            ``prefill_logits`` and ``verify_ran_in_graph``.

    Raises:
        SelfCheckError: the server must not start.
    """
    for shape in worker.tree_shapes():
        _check_shape(worker, shape)


def _check_shape(worker: Any, shape: TreeShape) -> None:
    start = time.perf_counter()
    with torch.no_grad():
        logits = node_logits(worker, shape)
    dtype = roughest_dtype(worker.model_runner)
    strays = strays_allowed(len(logits.names), worker.model_runner)
    verdict = judge(logits, tolerance_of(dtype), strays)
    left_out = f" but for {strays} (the largest of all {verdict.worst_stray:.4g})" if strays else ""
    figures = (
        f"{len(logits.names)} nodes, largest difference {verdict.worst:.4g} ({verdict.where}){left_out}, "
        f"tolerance {verdict.tolerance:g} for {dtype}, contrast "
        + ("none" if verdict.contrast is None else f"{verdict.contrast:.4g}")
    )
    path = "CUDA graph" if worker.verify_ran_in_graph else "eager"
    path = f"{type(worker.model_runner.attn_backend).__name__}, {path}, budget {shape.budget}"
    # Narrower trees than the graphs' run eagerly when serving, too.  The V1 line refuses graphs.
    graphs = getattr(worker.model_runner, "decode_cuda_graph_runner", None)
    expects_graph = graphs is not None and shape.budget + 1 == worker.max_nodes
    if expects_graph and not worker.verify_ran_in_graph:
        raise SelfCheckError(
            "DDTREE's self-check cannot vouch for the CUDA graphs that were captured: its verify ran "
            f"eagerly. Start with --cuda-graph-backend-decode disabled. {path}: {figures}"
        )
    if verdict.problem:
        raise SelfCheckError(f"DDTREE's self-check failed: {verdict.problem}. {path}: {figures}")
    logger.info("DDTREE self-check passed in %.2f s. %s: %s", time.perf_counter() - start, path, figures)


def tolerance_of(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, max(TOLERANCE.values()))


def roughest_dtype(runner: Any) -> torch.dtype:
    """Of what the target computes in and, where it is a hybrid, keeps its recurrent states in."""
    dtypes = {runner.dtype}
    if keeps_recurrent_states(runner):
        dtypes |= state_dtypes(runner.req_to_token_pool)
    return max(dtypes, key=tolerance_of)


def strays_allowed(nodes: int, runner: Any) -> int:
    """How many of ``nodes`` may differ by more than the tolerance; in float32 none, it rounds too finely."""
    if roughest_dtype(runner) == torch.float32:
        return 0
    amplifies = keeps_recurrent_states(runner) or picks_experts(runner.model_config.hf_text_config)
    return int(nodes * STRAYS) if amplifies else 0


def picks_experts(config: Any) -> bool:
    """Whether a router picks some of a layer's experts: where all are active, it only weighs them."""
    experts = max(getattr(config, name, None) or 0 for name in _EXPERT_COUNTS)
    return experts > (getattr(config, "num_experts_per_tok", None) or 1)


def judge(logits: NodeLogits, tolerance: float, strays: int = 0) -> Verdict:
    """Compare the logits, the ``strays`` worst nodes left out; see :class:`Verdict`."""
    differences = relative_distance(logits.served, logits.alone)
    differences = torch.where(differences.isnan(), torch.inf, differences)
    falling = differences.argsort(descending=True)
    at = int(falling[strays])
    contrast = None
    for row, kin in enumerate(logits.kin):
        alike = [other for other in range(row) if logits.kin[other] == kin]
        if alike:
            apart = float(relative_distance(logits.alone[alike], logits.alone[row : row + 1]).max())
            contrast = apart if contrast is None else max(contrast, apart)
    return Verdict(
        worst=float(differences[at]),
        worst_stray=float(differences[falling[0]]),
        where=logits.names[at],
        contrast=contrast,
        tolerance=tolerance,
    )


def relative_distance(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Root mean square of the difference over that of the centred logits, per row."""
    size = (theirs - theirs.mean(-1, keepdim=True)).norm(dim=-1)
    return (ours - theirs).norm(dim=-1) / size


def node_logits(worker: Any, shape: TreeShape, seed: int = 0) -> NodeLogits:
    """Random trees of one shape by the serving path, and each root path of theirs alone."""
    generator = torch.Generator().manual_seed(seed)
    vocab = int(worker.model_runner.model_config.vocab_size)
    requests = min(len(PREFIX_LENS), int(worker.model_runner.max_running_requests))
    prefixes = [
        torch.randint(vocab, (size,), generator=generator).tolist() for size in PREFIX_LENS[:requests]
    ]
    roots = torch.randint(vocab, (requests,), generator=generator)
    ids, logps = random_candidates(generator, requests, worker.block_size - 1, min(shape.topk, vocab), vocab)

    batch, _ = _prefill(worker, prefixes)
    trees, logits = worker.verify_candidates(
        batch,
        roots.to(worker.device),
        ids.to(worker.device),
        logps.to(worker.device),
        shape.budget,
    )
    served = logits.float().view(requests, shape.budget + 1, -1)[..., :vocab].cpu()
    _forget(worker)

    names, kin, rows, sequences = [], [], [], []
    for request, tree in enumerate(trees.trees()):
        size = len(tree.parents)
        tokens = [int(roots[request]), *tree.node_token_ids.tolist()]
        depths = [0, *tree.node_depths.tolist()]
        step = max(1, -(-size // NODES_PER_REQUEST))
        for node in sorted({*range(0, size, step), size - 1}):
            path, at = [], node
            while at >= 0:
                path.append(tokens[at])
                at = tree.parents[at]
            names.append(f"request {request}, node {node} at depth {depths[node]}")
            kin.append((request, depths[node], tokens[node]))
            rows.append(served[request, node])
            sequences.append(prefixes[request] + path[::-1])
    return NodeLogits(names, kin, torch.stack(rows), _logits_alone(worker, sequences)[:, :vocab])


def random_candidates(
    generator: torch.Generator, requests: int, depth: int, width: int, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 and log-probs float32, ``[requests, depth, width]``, of trees both deep and broad."""
    ids = torch.stack(
        [torch.randperm(vocab, generator=generator)[:width] for _ in range(requests * depth)]
    ).view(requests, depth, width)
    logits = torch.randn(requests, depth, width, generator=generator) * 1.5
    return ids, torch.log_softmax(logits, -1).sort(-1, descending=True).values


def _logits_alone(worker: Any, sequences: list[list[int]]) -> torch.Tensor:
    """``[len(sequences), V]`` float32 logits after each sequence, by ordinary prefills."""
    runner = worker.model_runner
    longest = max(len(one) for one in sequences)
    at_once = min(
        REFERENCE_ROWS, int(runner.max_running_requests), int(runner.max_total_num_tokens) // longest
    )
    out = []
    for start in range(0, len(sequences), max(1, at_once)):
        _, logits = _prefill(worker, sequences[start : start + max(1, at_once)])
        out.append(logits.float().cpu())
        _forget(worker)
    return torch.cat(out)


def _prefill(worker: Any, sequences: list[list[int]]) -> tuple[ScheduleBatch, torch.Tensor]:
    """Prefill ``sequences`` as requests of their own; the batch, and the logits ``[n, V]`` after each."""
    runner = worker.model_runner
    batch = ScheduleBatch.init_new(
        reqs=[_request(index, tokens) for index, tokens in enumerate(sequences)],
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        tree_cache=_NoCache(
            page_size=runner.token_to_kv_pool_allocator.page_size,
            device=runner.device,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        ),
        model_config=runner.model_config,
        enable_overlap=False,
        spec_algorithm=runner.spec_algorithm,
    )
    batch.prepare_for_extend()
    if batch.input_ids is None:
        batch.input_ids = batch.prefill_input_ids_cpu.to(batch.device)
        batch.prefill_input_ids_cpu = None
    return batch, worker.prefill_logits(batch)


def _request(index: int, tokens: list[int]) -> Req:
    request = Req(
        rid=f"ddtree-self-check-{index}",
        origin_input_text="",
        origin_input_ids=array("q", tokens),
        sampling_params=SamplingParams(temperature=0, max_new_tokens=1),
    )
    request.full_untruncated_fill_ids = request.origin_input_ids
    request.logprob_start_len = -1
    if is_v1():
        request.fill_len = len(tokens)
        request.set_extend_input_len(len(tokens))
    else:
        request.extend_end = len(tokens)
    return request


def _forget(worker: Any) -> None:
    """Empty the pools: nothing but this check has used them yet."""
    worker.model_runner.req_to_token_pool.clear()
    worker.model_runner.token_to_kv_pool_allocator.clear()


class _NoCache(SimpleNamespace):
    """What allocation asks of a prefix cache: there is none yet, and nothing in it to evict."""

    def is_chunk_cache(self) -> bool:
        return True

    def supports_swa(self) -> bool:
        return False

    def supports_mamba(self) -> bool:
        return False

    def supports_prefix_sharing(self) -> bool:
        return True

    def evict(self, params: Any) -> None:
        pass

    def maybe_hand_to_session(self, req: Any) -> None:
        pass
