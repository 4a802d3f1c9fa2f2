"""The draft side of the DDTREE worker: DFLASH's, but it ranks candidates where DFLASH picks a chain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.mem_cache.kv_loc_plan import KVLocPlan
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2, _resolve_dflash_embedding_module
from sglang.srt.speculative.draft_worker_common import make_draft_input_v2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_ddtree.ddtree_info import DDTreeDraftInput
from sglang_ddtree.draft_topk import draft_log_probs, ranked_topk
from sglang_ddtree.release import draft_parallel_context, logits_processor_of
from sglang_ddtree.server_args import DDTreeConfig, ddtree_config
from sglang_ddtree.vocab_shards import shard_topk, vocab_shard


class Window(NamedTuple):
    """The KV slots of one step, from the committed length of each request on.

    Attributes:
        target_slots: ``[bs, N]`` int64 slots of the verify forward.
        draft_slots: ``[bs, B]`` int64 slots of the draft block; they begin as the target's do.
        target: the plan of the verify forward.
        draft: the plan of the draft block and of the committed draft KV.
    """

    target_slots: torch.Tensor
    draft_slots: torch.Tensor
    target: KVLocPlan
    draft: KVLocPlan


class DDTreeDraftWorker(DFlashWorkerV2):
    """Loads the DFlash draft and runs its block; the rest of a step is :class:`DDTreeWorker`'s.

    Attributes:
        ddtree: the flags in effect.
        block_size: ``B``, tokens of a draft block, the bonus token first.
        max_nodes: tokens of the widest verify window; a step's ``N = budget + 1`` is at most that.
    """

    def __init__(self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker):
        self.ddtree: DDTreeConfig = ddtree_config(server_args)
        with self._draft_widths():
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self._check_models()
        self.max_nodes = self.ddtree.budget + 1
        # What the scheduler reads: the stride of next_token_ids and the KV reserve.
        self.speculative_num_draft_tokens = self.max_nodes

    @contextmanager
    def _draft_widths(self) -> Iterator[None]:
        """The draft runs blocks of its own width, in a chain; SGLang's global widths are the target's."""
        spec = get_spec()
        with spec.override(
            speculative_num_draft_tokens=spec.speculative_dflash_block_size, speculative_eagle_topk=1
        ):
            yield

    def _check_models(self) -> None:
        if self._is_domino or self.selector is not None or self.lilicorr is not None:
            raise ValueError(
                "DDTREE needs a plain DFlash draft: Domino, DFlash2 selector and LiLiCorr drafts give no "
                "per-position distribution"
            )
        if (self.model_runner.sliding_window_size or 0) > 0:
            raise ValueError("targets with sliding-window attention are not verified with DDTREE")
        head = unwrap_lora_layer(getattr(self.target_worker.model_runner.model, "lm_head", None))
        weight = getattr(head, "weight", None)
        if weight is None or not weight.is_floating_point() or weight.dtype.itemsize < 2:
            raise ValueError("DDTREE needs the target's lm_head as a dense, unquantized weight")
        self._vocab_shard = vocab_shard(head, get_parallel().tp_group)

    def init_attention_backends(self) -> None:
        with self._draft_widths():
            super().init_attention_backends()

    def init_cuda_graphs(self) -> None:
        with self._draft_widths():
            super().init_cuda_graphs()

    def _maybe_build_draft_sampler(self) -> None:
        """DFLASH folds its argmax into the draft's graph; DDTREE ranks candidates after it."""
        return

    def _make_next_draft_input_prefill(
        self, *, bonus_tokens: torch.Tensor, seq_lens: torch.Tensor
    ) -> DDTreeDraftInput:
        return self._make_next_draft_input_decode(bonus_tokens=bonus_tokens, new_seq_lens=seq_lens)

    def _make_next_draft_input_decode(
        self, *, bonus_tokens: torch.Tensor, new_seq_lens: torch.Tensor
    ) -> DDTreeDraftInput:
        base = make_draft_input_v2(bonus_tokens=bonus_tokens, new_seq_lens=new_seq_lens)
        return DDTreeDraftInput(
            topk_p=base.topk_p,
            topk_index=base.topk_index,
            bonus_tokens=base.bonus_tokens,
            new_seq_lens=base.new_seq_lens,
            hidden_states=base.hidden_states,
        )

    def _plan_window(self, batch: ScheduleBatch, nodes: int) -> Window:
        block = self.block_size
        width = max(nodes, block)  # never more than the reserve: a block is cut to the widest window
        slots = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + width,
            batch_size=len(batch.seq_lens),
            draft_token_num=width,
            device=self.device,
        ).view(-1, width)

        def plan(width: int) -> KVLocPlan:
            return self.target_worker.model_runner.kv_index_translator.plan(
                req_pool_indices=batch.req_pool_indices,
                seq_lens=batch.seq_lens,
                seq_lens_cpu=batch.seq_lens_cpu,
                write_virtual=slots[:, :width].reshape(-1),
                read_extent=width,
            )

        return Window(
            target_slots=slots[:, :nodes],
            draft_slots=slots[:, :block],
            target=plan(nodes),
            draft=plan(block),
        )

    def _draft(
        self, batch: ScheduleBatch, bonus_tokens: torch.Tensor, window: Window, topk: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the draft block. Returns log-probs float32 and ids int64, both ``[bs, B - 1, topk]``."""
        bs, block = len(batch.seq_lens), self.block_size
        target_model = self.target_worker.model_runner.model
        block_ids = torch.full((bs, block), int(self._mask_token_id), dtype=torch.long, device=self.device)
        block_ids[:, 0] = bonus_tokens
        if self._full_embed_gpu is not None:
            embeds = torch.nn.functional.embedding(block_ids, self._full_embed_gpu)
        else:
            embeds = unwrap_lora_layer(_resolve_dflash_embedding_module(self.draft_model, target_model))(
                block_ids
            )
        if self._noise_embed_scale != 1.0:
            embeds = embeds * self._noise_embed_scale
        seq_lens_cpu = batch.seq_lens_cpu + block
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=bs,
            input_ids=block_ids.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=window.draft_slots.reshape(-1),
            seq_lens_sum=int(seq_lens_cpu.sum()),
            seq_lens_cpu=seq_lens_cpu,
            positions=(batch.seq_lens.unsqueeze(1) + self._block_pos_offsets).reshape(-1),
            input_embeds=embeds.view(-1, embeds.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            global_num_token_non_padded_cpu=bs * block,
        )
        window.draft.bind(forward_batch, self.draft_model_runner.kv_index_translator)
        with torch.inference_mode(), draft_parallel_context(self):
            hidden = self.draft_model_runner.forward(forward_batch).logits_output.hidden_states
        if hidden is None:
            raise RuntimeError("the DFlash draft returned no hidden states")
        hidden = hidden.view(bs, block, -1)[:, 1:].reshape(bs * (block - 1), -1)
        logps, ids = self._rank_draft_tokens(hidden, topk)
        return logps.view(bs, block - 1, -1), ids.view(bs, block - 1, -1)

    def _rank_draft_tokens(self, hidden: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Top-k log-probs and ids, both ``[R, k]``, of draft hidden ``[R, H]`` under the target's head.

        With tensor parallelism, each rank ranks its own part of the vocabulary.
        """
        weight = unwrap_lora_layer(self.target_worker.model_runner.model.lm_head).weight
        logits = torch.matmul(hidden.to(weight.dtype), weight.T).float()
        processor = logits_processor_of(self.target_worker.model_runner.model)
        # DFLASH's argmax is blind to these two; the shape of a tree is not.
        if (scale := getattr(processor, "logit_scale", None)) is not None:
            logits = logits * scale
        if cap := getattr(processor, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        vocab_size = int(self.model_runner.model_config.vocab_size)
        k = min(topk, vocab_size)
        if self._vocab_shard is not None:
            return shard_topk(logits, self._vocab_shard, k)
        return ranked_topk(draft_log_probs(logits, vocab_size), k)
