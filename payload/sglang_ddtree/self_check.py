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
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_ddtree.budget_schedule import TreeShape

logger = logging.getLogger(__name__)

# Of the root mean square of a node's centred logits. Measured in float32 on tiny models: rounding 1e-6, a
# wrong mask 1.4. The other types are estimates.
TOLERANCE = {torch.float32: 0.01, torch.float16: 0.05, torch.bfloat16: 0.1}
RECURRENT_TOLERANCE = 0.1  # a prefill runs the recurrence in chunks, verify step by step: other roundings
# Rounding may send a token to another expert, which changes one node's logits a lot: so many may be off.
# That this happened on the tiny hybrid (1 node of 34 at 0.36) is a guess, and the allowance could hide a real
# fault there: hybrid targets stay behind their unsafe flag.
STRAYS_OF_ROUTED_MODELS = 1 / 8
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
        where: at which node.
        contrast: how far apart nodes are that differ in their ancestors alone; None if there are none.
        tolerance: of the model's dtype.
    """

    worst: float
    where: str
    contrast: float | None
    tolerance: float

    @property
    def problem(self) -> str | None:
        if not self.worst <= self.tolerance:  # a NaN, too
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
    """Run the check on a :class:`~sglang_ddtree.ddtree_worker.DDTreeWorker` whose pools are still empty.

    Raises:
        SelfCheckError: the server must not start.
    """
    for shape in worker.tree_shapes():
        _check_shape(worker, shape)


def _check_shape(worker: Any, shape: TreeShape) -> None:
    start = time.perf_counter()
    dtype = worker.model_runner.dtype
    with torch.no_grad():
        logits = _run(worker, shape)
    tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
    if mambaish_config(worker.model_runner.model_config) is not None:
        tolerance = max(tolerance, RECURRENT_TOLERANCE)
    is_routed = has_routed_experts(worker.model_runner.model_config.hf_text_config)
    strays = int(len(logits.names) * STRAYS_OF_ROUTED_MODELS) if is_routed else 0
    verdict = judge(logits, tolerance, strays)
    left_out = f" but for {strays} (experts are routed)" if strays else ""
    figures = (
        f"{len(logits.names)} nodes, largest difference {verdict.worst:.4g} ({verdict.where}){left_out}, "
        f"tolerance {verdict.tolerance:g} for {dtype}, contrast "
        + ("none" if verdict.contrast is None else f"{verdict.contrast:.4g}")
    )
    path = "CUDA graph" if worker.verify_ran_in_graph else "eager"
    path = f"{type(worker.model_runner.attn_backend).__name__}, {path}, budget {shape.budget}"
    # Narrower trees than the graphs' run eagerly when serving, too.
    expects_graph = (
        worker.model_runner.decode_cuda_graph_runner is not None and shape.budget + 1 == worker.max_nodes
    )
    if expects_graph and not worker.verify_ran_in_graph:
        raise SelfCheckError(
            "DDTREE's self-check cannot vouch for the CUDA graphs that were captured: its verify ran "
            f"eagerly. Start with --cuda-graph-backend-decode disabled. {path}: {figures}"
        )
    if verdict.problem:
        raise SelfCheckError(f"DDTREE's self-check failed: {verdict.problem}. {path}: {figures}")
    logger.info("DDTREE self-check passed in %.2f s. %s: %s", time.perf_counter() - start, path, figures)


def has_routed_experts(config: Any) -> bool:
    return any((getattr(config, name, None) or 0) > 1 for name in _EXPERT_COUNTS)


def judge(logits: NodeLogits, tolerance: float, strays: int = 0) -> Verdict:
    """Compare the logits, the ``strays`` worst nodes left out; see :class:`Verdict`."""
    differences = _distance(logits.served, logits.alone)
    differences = torch.where(differences.isnan(), torch.inf, differences)
    at = int(differences.argsort(descending=True)[strays])
    contrast = None
    for row, kin in enumerate(logits.kin):
        alike = [other for other in range(row) if logits.kin[other] == kin]
        if alike:
            apart = float(_distance(logits.alone[alike], logits.alone[row : row + 1]).max())
            contrast = apart if contrast is None else max(contrast, apart)
    return Verdict(float(differences[at]), logits.names[at], contrast, tolerance)


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Root mean square of the difference over that of the centred logits, per row."""
    size = (theirs - theirs.mean(-1, keepdim=True)).norm(dim=-1)
    return (ours - theirs).norm(dim=-1) / size


def _run(worker: Any, shape: TreeShape) -> NodeLogits:
    generator = torch.Generator().manual_seed(0)
    vocab = int(worker.model_runner.model_config.vocab_size)
    requests = min(len(PREFIX_LENS), int(worker.model_runner.max_running_requests))
    prefixes = [
        torch.randint(vocab, (size,), generator=generator).tolist() for size in PREFIX_LENS[:requests]
    ]
    roots = torch.randint(vocab, (requests,), generator=generator)
    ids, logps = random_candidates(generator, requests, worker.block_size - 1, min(shape.topk, vocab), vocab)

    batch, _ = _prefill(worker, prefixes)
    batch.spec_info = worker._make_next_draft_input_decode(
        bonus_tokens=roots.to(worker.device), new_seq_lens=batch.seq_lens
    )
    batch.prepare_for_decode()
    window = worker._plan_window(batch, shape.budget + 1)
    trees = worker._grow_trees(ids.to(worker.device), logps.to(worker.device), shape.budget)
    verify_input = worker._build_ddtree_verify_input(batch, roots.to(worker.device), trees, window)
    served = worker._verify(batch, verify_input, window).next_token_logits
    served = served.float().view(requests, shape.budget + 1, -1)[..., :vocab].cpu()
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
    forward_batch = ForwardBatch.init_new(batch, runner, return_hidden_states_before_norm=False)
    logits = runner.forward(forward_batch).logits_output.next_token_logits
    return batch, worker.gathered_logits(logits)


def _request(index: int, tokens: list[int]) -> Req:
    request = Req(
        rid=f"ddtree-self-check-{index}",
        origin_input_text="",
        origin_input_ids=array("q", tokens),
        sampling_params=SamplingParams(temperature=0, max_new_tokens=1),
    )
    request.full_untruncated_fill_ids = request.origin_input_ids
    request.logprob_start_len = -1
    request.extend_end = len(tokens)
    return request


def _forget(worker: Any) -> None:
    """Empty the pools: nothing but this check has used them yet."""
    worker.model_runner.req_to_token_pool.clear()
    worker.model_runner.token_to_kv_pool_allocator.clear()


class _NoCache(SimpleNamespace):
    """What allocation asks of a prefix cache: there is none yet."""

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
