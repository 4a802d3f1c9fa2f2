"""The DDTREE worker of SGLang 0.5.13: draft a block, grow a tree from it, verify it in one forward, commit.

Prefill, pools, draft construction and the draft KV are DFLASH's V1 worker's; a decode step is this module's.
The steps, and their shapes, are those of :mod:`sglang_ddtree.ddtree_worker`.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.dflash_worker import DFlashWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import assign_req_to_token_pool_func

from sglang_ddtree import hooks
from sglang_ddtree.budget_schedule import TreeShape
from sglang_ddtree.ddtree_mask import flatten_tree_mask, tree_mask_layout
from sglang_ddtree.ddtree_sampling import draw_at_nodes
from sglang_ddtree.ddtree_walk import walk_tree
from sglang_ddtree.draft_topk import draft_log_probs, ranked_topk
from sglang_ddtree.kernels.walk import AcceptedPaths
from sglang_ddtree.metrics import Stopwatch, TreeMetrics
from sglang_ddtree.prometheus import TreeExporter
from sglang_ddtree.release import keeps_recurrent_states, logits_processor_of
from sglang_ddtree.self_check import check_verify_path
from sglang_ddtree.server_args import ddtree_config
from sglang_ddtree.tree_batch import DDTreeBatch, MaskWorkspace, build_ddtree_batch
from sglang_ddtree.v1 import commit
from sglang_ddtree.v1.info import DDTreeDraftInput, DDTreeVerifyInput
from sglang_ddtree.versions import check_sglang_version

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorker):
    """DFLASH's V1 worker with a tree in place of the chain.

    Raises, at start:
        UnsupportedSGLangError, HookError: another SGLang, or a hook not in place.
        UnsupportedAttentionBackendError: the target's backend takes no tree mask.
        ValueError: a target that DDTREE does not support.
        SelfCheckError: the verify path computes something else than each tree path alone.
    """

    verify_ran_in_graph = False  # graphs are refused on this line

    def __init__(self, server_args: ServerArgs, **placement: Any):
        check_sglang_version()
        hooks.assert_in_place()
        self.ddtree = ddtree_config(server_args)
        # The draft runs blocks of its own width; SGLang has one width for both, which is the target's.
        draft_args = copy.copy(server_args)
        draft_args.speculative_num_draft_tokens = server_args.speculative_dflash_block_size
        super().__init__(draft_args, **placement)
        self.server_args = server_args
        self.num_nodes = self.ddtree.budget + 1
        self._mask_layout = tree_mask_layout(self.model_runner.attn_backend)
        self._mask_workspace = MaskWorkspace()
        self._compile_builder()
        labels = {"model_name": server_args.served_model_name}
        self.metrics = TreeMetrics(
            debug=self.ddtree.debug_metrics,
            exporter=TreeExporter(labels) if server_args.enable_metrics else None,
            tp_group=get_tp_group(),
            device=torch.device(self.device),
        )
        if keeps_recurrent_states(self.model_runner):
            raise ValueError("hybrid (Mamba / linear attention) targets are not supported on SGLang 0.5.13")
        weight = getattr(getattr(self.model_runner.model, "lm_head", None), "weight", None)
        if weight is None or not weight.is_floating_point() or weight.dtype.itemsize < 2:
            raise ValueError("DDTREE needs the target's lm_head as a dense, unquantized weight")
        logger.info(
            "DDTREE: budget=%d topk_cap=%d draft block=%d",
            self.ddtree.budget,
            self.ddtree.topk_cap,
            self.block_size,
        )
        check_verify_path(self)

    def forward_batch_generation(self, batch: ScheduleBatch, **kwargs: Any) -> GenerationBatchResult:
        """One step of ``batch``: DFLASH's prefill, or a DDTREE decode step.

        A decode step appends the accepted tokens to the requests itself, as all of the V1 line.
        """
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return super().forward_batch_generation(batch, **kwargs)
        draft_input = batch.spec_info
        if not isinstance(draft_input, DDTreeDraftInput):
            raise RuntimeError(f"DDTREE expected DFLASH's draft state, got {type(draft_input).__name__}")

        topk_logps, topk_ids = self._draft(batch, draft_input.bonus_tokens)
        with Stopwatch() as building:
            trees = self._grow_trees(topk_ids, topk_logps, self.ddtree.budget)
        verify_input = self._build_ddtree_verify_input(batch, draft_input.bonus_tokens, trees)
        with self.metrics.on_device() as verifying:
            logits_output = self._verify(batch, verify_input, **kwargs)
        logits = self._adjusted_logits(batch, logits_output.next_token_logits)
        if batch.sampling_info is None or batch.sampling_info.is_all_greedy:
            choices, paths = self._greedy_tree_paths(verify_input, logits)
        else:
            choices, paths = self._sample_tree_paths(verify_input, logits, batch.sampling_info)
        if self.metrics.enabled:
            self.metrics.record(
                trees,
                choices,
                paths,
                batch.reqs,
                budget=self.ddtree.budget,
                building=building,
                verifying=verifying,
            )
        return self._commit(batch, draft_input, paths, logits_output)

    def tree_shapes(self) -> list[TreeShape]:
        """Every shape that a step's trees can have: one."""
        return [TreeShape(self.ddtree.budget, min(self.ddtree.topk_cap, self.ddtree.budget))]

    def prefill_logits(self, batch: ScheduleBatch) -> torch.Tensor:
        """The target's logits after each request of a prefill batch, ``[bs, V]``; for the self-check."""
        forward_batch = ForwardBatch.init_new(batch, self.model_runner)
        return self.model_runner.forward(forward_batch).logits_output.next_token_logits

    def verify_candidates(
        self,
        batch: ScheduleBatch,
        root_tokens: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_logps: torch.Tensor,
        budget: int,
    ) -> tuple[DDTreeBatch, torch.Tensor]:
        """A decode step up to the target's logits, on given candidates; for the self-check.

        Args:
            batch: just prefilled.
            root_tokens: ``[bs]`` int64.
            topk_ids, topk_logps: ``[bs, B - 1, k]`` int64 and float32, in place of the draft's.

        Returns:
            The trees, and logits ``[bs * N, V]``.
        """
        trees = self._grow_trees(topk_ids, topk_logps, budget)
        verify_input = self._build_ddtree_verify_input(batch, root_tokens, trees)
        return trees, self._verify(batch, verify_input).next_token_logits

    def _grow_trees(self, topk_ids: torch.Tensor, topk_logps: torch.Tensor, budget: int) -> DDTreeBatch:
        """One tree per request from ``[bs, L, k]`` candidates, on the host."""
        ids, logps = (one.contiguous().cpu().numpy() for one in (topk_ids, topk_logps))
        return build_ddtree_batch(ids, logps, budget, self._mask_workspace)

    def _compile_builder(self) -> None:
        """Build one tree of the shape to be served, so that no request waits for the compiler."""
        budget, width = self.tree_shapes()[0]
        logps = -torch.arange(1, width + 1, dtype=torch.float32).expand(1, self.block_size - 1, width)
        ids = torch.arange(width).expand(1, self.block_size - 1, width)
        self._grow_trees(ids, logps, budget)

    def _draft(self, batch: ScheduleBatch, bonus_tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the draft block. Returns log-probs float32 and ids int64, both ``[bs, B - 1, k]``."""
        bs, block = batch.batch_size(), self.block_size
        target_model = self.target_worker.model_runner.model
        block_ids = torch.full((bs, block), int(self._mask_token_id), dtype=torch.long, device=self.device)
        block_ids[:, 0] = bonus_tokens
        embeds = target_model.get_input_embeddings()(block_ids)
        allocator = self.draft_model_runner.token_to_kv_pool_allocator
        before = allocator.backup_state()
        try:
            slots = allocator.alloc(bs * block)
            if slots is None:
                raise RuntimeError(f"DDTREE: no {bs * block} KV slots are free for the draft's blocks")
            assign_req_to_token_pool_func(
                batch.req_pool_indices,
                self.draft_model_runner.req_to_token_pool.req_to_token,
                batch.seq_lens,
                batch.seq_lens + block,
                slots,
                bs,
            )
            forward_batch = ForwardBatch(
                forward_mode=ForwardMode.TARGET_VERIFY,
                batch_size=bs,
                input_ids=block_ids.flatten(),
                req_pool_indices=batch.req_pool_indices,
                seq_lens=batch.seq_lens,
                out_cache_loc=slots,
                seq_lens_sum=int(batch.seq_lens_cpu.sum()),
                seq_lens_cpu=batch.seq_lens_cpu,
                positions=(batch.seq_lens.unsqueeze(1) + self._block_pos_offsets).reshape(-1),
                input_embeds=embeds.view(-1, embeds.shape[-1]),
                spec_algorithm=SpeculativeAlgorithm.DFLASH,
                spec_info=self._draft_block_spec_info,
                capture_hidden_mode=CaptureHiddenMode.NULL,
            )
            with torch.inference_mode():
                hidden = self.draft_model_runner.forward(forward_batch).logits_output.hidden_states
        finally:
            allocator.restore_state(before)  # the block's slots were lent for this forward only
        if hidden is None:
            raise RuntimeError("the DFlash draft returned no hidden states")
        hidden = hidden.view(bs, block, -1)[:, 1:].reshape(bs * (block - 1), -1)
        logps, ids = self._rank_draft_tokens(hidden)
        return logps.view(bs, block - 1, -1), ids.view(bs, block - 1, -1)

    def _rank_draft_tokens(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Top-k log-probs and ids, both ``[R, k]``, of draft hidden ``[R, H]`` under the target's head."""
        model = self.target_worker.model_runner.model
        weight = model.lm_head.weight
        logits = torch.matmul(hidden.to(weight.dtype), weight.T).float()
        processor = logits_processor_of(model)
        # DFLASH's argmax is blind to these two; the shape of a tree is not.
        if (scale := getattr(processor, "logit_scale", None)) is not None:
            logits = logits * scale
        if cap := getattr(processor, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        logps = draft_log_probs(logits, int(self.model_runner.model_config.vocab_size))
        return ranked_topk(logps, min(self.ddtree.topk_cap, self.ddtree.budget, logps.shape[-1]))

    def _build_ddtree_verify_input(
        self, batch: ScheduleBatch, bonus_tokens: torch.Tensor, trees: DDTreeBatch
    ) -> DDTreeVerifyInput:
        """The trees of a batch as the input of one TARGET_VERIFY forward."""
        draft_token = trees.token_ids.to(self.device).clone()
        draft_token[:, 0] = bonus_tokens
        mask = flatten_tree_mask(trees.visibility, batch.seq_lens_cpu, self._mask_layout)
        return DDTreeVerifyInput(
            draft_token=draft_token.view(-1),
            positions=(batch.seq_lens.unsqueeze(1) + trees.depths.to(self.device)).view(-1),
            draft_token_num=self.num_nodes,
            custom_mask=mask.to(self.device),
            capture_hidden_mode=CaptureHiddenMode.FULL,
            retrieve_index=trees.retrieve_index.to(self.device),
            retrieve_next_token=trees.retrieve_next_token.to(self.device),
            retrieve_next_sibling=trees.retrieve_next_sibling.to(self.device),
        )

    def _verify(self, batch: ScheduleBatch, verify_input: DDTreeVerifyInput, **kwargs: Any) -> Any:
        """Run the target over the trees. Logits ``[bs * N, V]`` and aux hidden states ``[bs * N, H']``."""
        mask = verify_input.custom_mask
        verify_input.prepare_for_verify(batch, self.page_size, build_custom_mask=False)  # drops the mask
        verify_input.custom_mask = mask
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.spec_info = verify_input
        batch.return_hidden_states = False
        logits_output = self.target_worker.forward_batch_generation(
            batch, is_verify=True, **kwargs
        ).logits_output
        if logits_output.hidden_states is None:
            raise RuntimeError("DDTREE verify got no aux hidden states from the target")
        return logits_output

    def _adjusted_logits(self, batch: ScheduleBatch, logits: torch.Tensor) -> torch.Tensor:
        """Add each request's logit bias at all of its nodes; what depends on the path is refused earlier."""
        bias = None if batch.sampling_info is None else batch.sampling_info.logit_bias
        return logits if bias is None else logits.add_(bias.repeat_interleave(self.num_nodes, dim=0))

    def _greedy_tree_paths(
        self, verify_input: DDTreeVerifyInput, logits: torch.Tensor
    ) -> tuple[torch.Tensor, AcceptedPaths]:
        """T = 0: the target's best token at every node, ``[bs, N]``, and the paths that they accept."""
        choices = logits.argmax(-1).view(-1, self.num_nodes)
        return choices, walk_tree(verify_input, choices, max_nodes=self.block_size)

    def _sample_tree_paths(
        self, verify_input: DDTreeVerifyInput, logits: torch.Tensor, sampling_info: SamplingBatchInfo
    ) -> tuple[torch.Tensor, AcceptedPaths]:
        """T > 0: the target's own draw at every node, ``[bs, N]``, and the paths that they accept."""
        draws = draw_at_nodes(
            self.model_runner.sampler, logits, sampling_info, verify_input.positions, self.num_nodes
        )
        return draws, walk_tree(verify_input, draws, max_nodes=self.block_size)

    def _commit(
        self, batch: ScheduleBatch, draft_input: DDTreeDraftInput, paths: AcceptedPaths, logits_output: Any
    ) -> GenerationBatchResult:
        """Make the accepted paths the requests' state, whichever way they were chosen."""
        lengths = commit.append_accepted_tokens(batch.reqs, paths)
        commit_lens = torch.tensor(lengths, dtype=torch.int32, device=self.device)
        kept = commit.nodes_to_keep(paths, commit_lens)
        commit.commit_slots(batch, kept, lengths)
        draft_input.bonus_tokens = torch.tensor(
            [req.output_ids[-1] for req in batch.reqs], dtype=torch.int64, device=self.device
        )
        draft_input.target_hidden = logits_output.hidden_states.view(
            -1, logits_output.hidden_states.shape[-1]
        ).index_select(0, kept)
        draft_input.ctx_lens = commit_lens
        logits_output.hidden_states = None
        self._append_target_hidden_to_draft_kv(batch, draft_input)
        batch.spec_info = draft_input
        batch.forward_mode = ForwardMode.DECODE
        drafts = [length - 1 for length in lengths]
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=draft_input.bonus_tokens,
            num_correct_drafts=sum(drafts),
            num_correct_drafts_per_req_cpu=drafts,
            can_run_cuda_graph=False,
        )
