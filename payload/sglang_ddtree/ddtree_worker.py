"""The DDTREE worker: draft a block, grow a tree from it, verify the tree in one target forward, commit.

Prefill, KV pools, draft construction and the draft KV are DFLASH's; a decode step is this module's.  One
step, for ``bs`` requests, ``B`` the draft's block size and ``N = budget + 1`` (the budget may depend on
``bs``: ``budget_schedule``):

    draft     B tokens (bonus + masks) -> log-probs and ids of the best k tokens at B - 1 positions
    tree      best-first               -> N nodes, padded
    verify    one TARGET_VERIFY forward of bs * N tokens under the tree mask -> target logits per node
    accept    the target's own choice at each node; walk while it is a child
    commit    KV and hidden states of the accepted path to the front of the window
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite

from sglang_ddtree import hooks
from sglang_ddtree.budget_schedule import TreeShape, tree_shape, tree_shapes
from sglang_ddtree.ddtree_draft import DDTreeDraftWorker, Window
from sglang_ddtree.ddtree_info import DDTreeDraftInput, DDTreeVerifyInput
from sglang_ddtree.ddtree_mask import tree_mask_layout
from sglang_ddtree.ddtree_sampling import draw_at_nodes
from sglang_ddtree.ddtree_verify import commit_accepted_paths
from sglang_ddtree.ddtree_walk import walk_tree
from sglang_ddtree.kernels.build import DeviceTrees
from sglang_ddtree.kernels.walk import AcceptedPaths
from sglang_ddtree.metrics import Stopwatch, TreeMetrics
from sglang_ddtree.recurrent_states import log_states
from sglang_ddtree.release import keeps_recurrent_states
from sglang_ddtree.self_check import check_verify_path
from sglang_ddtree.tree_batch import DDTreeBatch
from sglang_ddtree.tree_builder import TreeBuilder
from sglang_ddtree.versions import check_sglang_version
from sglang_ddtree.vocab_shards import gathered_logits, logits_left_in_shards, shard_argmax

logger = logging.getLogger(__name__)


class DDTreeWorker(DDTreeDraftWorker):
    """DFLASH's worker with a tree in place of the chain.

    Raises, at start:
        UnsupportedSGLangError, HookError: another SGLang, or a hook not in place.
        UnsupportedAttentionBackendError: the target's backend takes no tree mask.
        ValueError: a draft or target that DDTREE does not support.
        SelfCheckError: the verify path computes something else than each tree path alone.
    """

    def __init__(self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker):
        check_sglang_version()
        hooks.assert_in_place()
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.verify_ran_in_graph = False
        self._builder = TreeBuilder(self.device, self.block_size - 1, self.tree_shapes())
        self._is_hybrid = keeps_recurrent_states(self.model_runner)
        self.metrics = TreeMetrics.of_server(self.ddtree, self.device)
        logger.info(
            "DDTREE: budget=%d%s topk_cap=%d draft block=%d, trees on the %s",
            self.ddtree.budget,
            "" if self.ddtree.budget_schedule is None else f" schedule={list(self.ddtree.budget_schedule)}",
            self.ddtree.topk_cap,
            self.block_size,
            "device" if self._builder.on_device else "host",
        )

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        self._mask_layout = tree_mask_layout(self.model_runner.attn_backend)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        super().alloc_memory_pool(*args, **kwargs)
        if self._is_hybrid:
            log_states(self.model_runner.req_to_token_pool, self.max_nodes, self.model_runner.dtype)

    def _validate_phase1_sampling_support(self, batch: ScheduleBatch) -> None:
        """DFLASH warns here of a greedy fallback; DDTREE samples on every device."""

    def prewarm_sampling(self) -> Any:
        """The last step before the pools are the scheduler's: the worker proves its verify path.

        DFLASH rehearses its chain sampler here, which DDTREE does not use.
        """
        result = self.model_runner.prewarm_sampling()
        check_verify_path(self)
        return result

    def prefill_logits(self, batch: ScheduleBatch) -> torch.Tensor:
        """The target's logits after each request of a prefill batch, ``[bs, V]``; for the self-check."""
        runner = self.model_runner
        forward_batch = ForwardBatch.init_new(batch, runner, return_hidden_states_before_norm=False)
        return self._gathered_logits(runner.forward(forward_batch).logits_output.next_token_logits)

    def verify_candidates(
        self,
        batch: ScheduleBatch,
        root_tokens: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_logps: torch.Tensor,
        budget: int,
    ) -> tuple[DDTreeBatch | DeviceTrees, torch.Tensor]:
        """A decode step up to the target's logits, on given candidates; for the self-check.

        Args:
            batch: just prefilled.
            root_tokens: ``[bs]`` int64.
            topk_ids, topk_logps: ``[bs, B - 1, k]`` int64 and float32, in place of the draft's.

        Returns:
            The trees, and logits ``[bs * (budget + 1), V]``.
        """
        batch.spec_info = self._make_next_draft_input_decode(
            bonus_tokens=root_tokens, new_seq_lens=batch.seq_lens
        )
        batch.prepare_for_decode()
        window = self._plan_window(batch, budget + 1)
        trees = self._grow_trees(topk_ids, topk_logps, budget)
        verify_input = self._build_ddtree_verify_input(batch, root_tokens, trees, window)
        return trees, self._verify(batch, verify_input, window).next_token_logits

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Any = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """One step of ``batch``: DFLASH's prefill, or a DDTREE decode step.

        Returns, for a decode step, ``next_token_ids`` as ``[bs * max_nodes]`` with each request's accepted
        tokens and bonus at the front of its row, and ``accept_lens`` ``[bs]`` counting them.
        """
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            return super().forward_batch_generation(
                batch,
                on_publish=on_publish,
                grammar_barrier=grammar_barrier,
                pp_proxy_tensors=pp_proxy_tensors,
            )
        if not isinstance(batch.spec_info, DDTreeDraftInput):
            raise RuntimeError(f"DDTREE expected its own draft state, got {type(batch.spec_info).__name__}")

        bonus_tokens = batch.spec_info.bonus_tokens
        shape = tree_shape(len(batch.seq_lens), **self._shape_options())
        window = self._plan_window(batch, shape.budget + 1)
        topk_logps, topk_ids = self._draft(batch, bonus_tokens, window, shape.topk)
        with Stopwatch() as building:
            trees = self._grow_trees(topk_ids, topk_logps, shape.budget)
        verify_input = self._build_ddtree_verify_input(batch, bonus_tokens, trees, window)
        shards_do = self._vocab_shard is not None and _only_the_best_counts(batch)
        with (
            logits_left_in_shards(self._target_processor(), shards_do),
            self.metrics.on_device() as verifying,
        ):
            logits_output = self._verify(batch, verify_input, window)
        logits = self._adjusted_logits(batch, verify_input, logits_output.next_token_logits)
        if _is_all_greedy(batch):
            choices, paths = self._greedy_tree_paths(verify_input, logits)
        else:
            # The sampler overwrites what it draws from.
            kept = logits.clone() if batch.return_logprob else logits
            choices, paths = self._sample_tree_paths(verify_input, kept, batch.sampling_info)
        if batch.return_logprob:
            compute_spec_logprobs(
                batch, logits_output, paths.following_tokens, accept_index=paths.accept_index
            )
        if self.metrics.enabled:
            self.metrics.record(
                trees, choices, paths, batch.reqs, budget=shape.budget, building=building, verifying=verifying
            )
        return self._commit(batch, paths, logits_output, window, on_publish)

    def tree_shapes(self) -> list[TreeShape]:
        """Every shape that a step's trees can have, the widest first."""
        return tree_shapes(**self._shape_options())

    def _shape_options(self) -> dict[str, Any]:
        config = self.ddtree
        return {
            "budget": config.budget,
            "topk": config.topk_cap,
            "schedule": config.budget_schedule,
            "block_size": self.block_size,
        }

    def _grow_trees(
        self, topk_ids: torch.Tensor, topk_logps: torch.Tensor, budget: int
    ) -> DDTreeBatch | DeviceTrees:
        """One tree per request; see :class:`TreeBuilder`."""
        return self._builder.grow(topk_ids, topk_logps, budget)

    def _build_ddtree_verify_input(
        self,
        batch: ScheduleBatch,
        bonus_tokens: torch.Tensor,
        trees: DDTreeBatch | DeviceTrees,
        window: Window,
    ) -> DDTreeVerifyInput:
        """The trees of a batch as the input of one TARGET_VERIFY forward."""
        return DDTreeVerifyInput(
            **self._builder.compile(trees, bonus_tokens, batch, self._mask_layout)._asdict(),
            draft_token_num=trees.parents.shape[1],
            capture_hidden_mode=CaptureHiddenMode.FULL,
            kv_loc_plan=window.target,
            parents=trees.parents if self._builder.on_device else None,
            max_depth=self.block_size - 1,
        )

    def _verify(self, batch: ScheduleBatch, verify_input: DDTreeVerifyInput, window: Window) -> Any:
        """Run the target over the trees. Logits ``[bs * N, V]`` and aux hidden states ``[bs * N, H']``.

        Within ``logits_left_in_shards`` the logits may be the rank's shard, ``[bs * N, V / ranks]``.
        """
        batch.out_cache_loc = window.target_slots.reshape(-1)
        seq_lens_cpu, seq_lens_sum = batch.seq_lens_cpu, batch.seq_lens_sum
        # Backends plan with a host bound on what the forward reads: prefix and window.
        batch.seq_lens_cpu = seq_lens_cpu + verify_input.draft_token_num
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        forward_batch, self.verify_ran_in_graph = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = seq_lens_cpu, seq_lens_sum
        logits_output = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        ).logits_output
        if logits_output.hidden_states is None:
            raise RuntimeError("DDTREE verify got no aux hidden states from the target")
        logits_output.next_token_logits = self._gathered_logits(logits_output.next_token_logits)
        return logits_output

    def _gathered_logits(self, logits: torch.Tensor) -> torch.Tensor:
        return gathered_logits(self._target_processor(), logits)

    def _target_processor(self) -> Any:
        return getattr(self, "_target_logits_processor", None)  # from 0.5.23 on

    def _adjusted_logits(
        self, batch: ScheduleBatch, verify_input: DDTreeVerifyInput, logits: torch.Tensor
    ) -> torch.Tensor:
        """Add each request's logit bias at all of its nodes; what depends on the path is refused earlier."""
        if batch.sampling_info is not None:
            apply_dflash_verify_logits_adjustments(
                next_token_logits=logits,
                sampling_info=batch.sampling_info,
                draft_token_num=verify_input.draft_token_num,
            )
        return logits

    def _greedy_tree_paths(
        self, verify_input: DDTreeVerifyInput, logits: torch.Tensor
    ) -> tuple[torch.Tensor, AcceptedPaths]:
        """T = 0: the target's best token at every node, ``[bs, N]``, and the paths that they accept."""
        if logits.shape[-1] < self.model_runner.model_config.vocab_size:
            choices = shard_argmax(logits, self._vocab_shard)
        else:
            choices = logits.argmax(-1)
        choices = self._tp_sync.sync(SpecTpSyncSite.DFLASH_ACCEPT_GREEDY, choices)
        choices = choices.view(-1, verify_input.draft_token_num)
        return choices, walk_tree(verify_input, choices, max_nodes=self.block_size)

    def _sample_tree_paths(
        self, verify_input: DDTreeVerifyInput, logits: torch.Tensor, sampling_info: SamplingBatchInfo
    ) -> tuple[torch.Tensor, AcceptedPaths]:
        """T > 0: the target's own draw at every node, ``[bs, N]``, and the paths that they accept.

        Lossless by construction: whether a draw is a child decides only how far one forward reaches.
        """
        draws = draw_at_nodes(
            self.model_runner.sampler,
            logits,
            sampling_info,
            verify_input.positions,
            verify_input.draft_token_num,
        )
        draws = self._tp_sync.sync(SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE, draws.contiguous())
        return draws, walk_tree(verify_input, draws, max_nodes=self.block_size)

    def _commit(
        self,
        batch: ScheduleBatch,
        paths: AcceptedPaths,
        logits_output: Any,
        window: Window,
        on_publish: Any | None,
    ) -> GenerationBatchResult:
        """Make the accepted paths the requests' state, whichever way they were chosen."""
        new_seq_lens = batch.seq_lens + paths.commit_lens.to(batch.seq_lens.dtype)
        hidden = commit_accepted_paths(
            batch,
            paths,
            logits_output.hidden_states,
            self.target_worker,
            window.target_slots.shape[1],
            is_hybrid=self._is_hybrid,
        )
        if on_publish is not None:
            on_publish(new_seq_lens)
        block = self.block_size
        cache_loc = self._draft_write_ids(window.draft)
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden,
            cache_loc=cache_loc,
            cache_loc_2d=cache_loc.view(-1, block),
            positions=(batch.seq_lens.unsqueeze(1) + self._block_pos_offsets).reshape(-1),
            commit_lens=paths.commit_lens,
        )
        logits_output.hidden_states = None  # not to be copied to the host
        next_token_ids = torch.zeros(
            (len(batch.seq_lens), self.max_nodes), dtype=torch.int64, device=self.device
        )
        next_token_ids[:, :block] = paths.tokens
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=next_token_ids.view(-1),
            accept_lens=paths.commit_lens,
            can_run_cuda_graph=self.verify_ran_in_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=paths.bonus_tokens, new_seq_lens=new_seq_lens
            ),
            speculative_num_draft_tokens=self.max_nodes,
            new_seq_lens=new_seq_lens,
        )


def _is_all_greedy(batch: ScheduleBatch) -> bool:
    return batch.sampling_info is None or batch.sampling_info.is_all_greedy


def _only_the_best_counts(batch: ScheduleBatch) -> bool:
    """Whether nothing is read from the target's logits but the argmax of each row."""
    return (
        _is_all_greedy(batch)
        and not batch.return_logprob
        and getattr(batch.sampling_info, "logit_bias", None) is None
    )
