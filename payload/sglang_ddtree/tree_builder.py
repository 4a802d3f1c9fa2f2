"""Where a worker's trees are made: on the device by the Triton kernels, else on the host."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from sglang_ddtree import kernels
from sglang_ddtree.budget_schedule import TreeShape
from sglang_ddtree.ddtree_mask import flatten_tree_mask
from sglang_ddtree.kernels.build import DeviceTrees, build_trees, why_not
from sglang_ddtree.kernels.compile import CompiledTrees, compile_trees
from sglang_ddtree.spec_tree import TreeMaskMode
from sglang_ddtree.tree_batch import DDTreeBatch, MaskWorkspace, build_ddtree_batch

logger = logging.getLogger(__name__)


class TreeBuilder:
    """Grows the trees of a batch and compiles them for verify.

    On an accelerator nothing leaves the device and the host waits for nothing.  On the CPU the kernels run
    only under ``TRITON_INTERPRET=1``, for tests.

    Args:
        device: of the target.
        depth: levels of a tree, the draft's block size less one.
        shapes: every shape that is going to be built; each is built once here, so that no request waits for a
            compiler.
    """

    def __init__(self, device: torch.device | str, depth: int, shapes: Sequence[TreeShape]) -> None:
        self.device = torch.device(device)
        self._workspaces: defaultdict[int, MaskWorkspace] = defaultdict(MaskWorkspace)  # by width
        self.on_device = kernels.can_run_on(self.device)
        reasons = [why_not(depth, shape.topk, shape.budget) for shape in shapes] if self.on_device else []
        if reason := next(filter(None, reasons), None):
            self.on_device = False
            logger.warning("DDTREE builds trees on the host: %s", reason)
        for shape in shapes:
            logps = -torch.arange(1, shape.topk + 1, dtype=torch.float32, device=self.device)
            ids = torch.arange(shape.topk, device=self.device)
            self.grow(ids.expand(1, depth, -1), logps.expand(1, depth, -1), shape.budget)

    def grow(
        self, topk_ids: torch.Tensor, topk_logps: torch.Tensor, budget: int
    ) -> DDTreeBatch | DeviceTrees:
        """One tree per request from ``[bs, L, k]`` candidates; host masks are valid until the next."""
        if self.on_device:
            return build_trees(topk_ids, topk_logps, budget)
        ids, logps = (one.contiguous().cpu().numpy() for one in (topk_ids, topk_logps))
        return build_ddtree_batch(ids, logps, budget, self._workspaces[budget + 1])

    def compile(
        self, trees: DDTreeBatch | DeviceTrees, bonus_tokens: torch.Tensor, batch: Any, layout: TreeMaskMode
    ) -> CompiledTrees:
        """What the verify forward reads, on the device.

        Args:
            bonus_tokens: ``[bs]``, the roots' tokens.
            batch: SGLang's; its ``seq_lens`` and ``seq_lens_cpu`` are the committed lengths.
            layout: of the target's attention backend.
        """
        if isinstance(trees, DeviceTrees):
            return compile_trees(
                trees,
                bonus_tokens,
                batch.seq_lens,
                int(batch.seq_lens_cpu.sum()),
                full_mask=layout == TreeMaskMode.FULL_MASK,
            )

        def to_device(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.device, non_blocking=True)

        draft_token = to_device(trees.token_ids).clone()
        draft_token[:, 0] = bonus_tokens
        mask = flatten_tree_mask(trees.visibility, batch.seq_lens_cpu, layout)
        return CompiledTrees(
            draft_token=draft_token.view(-1),
            positions=(batch.seq_lens.unsqueeze(1) + to_device(trees.depths)).view(-1),
            custom_mask=to_device(mask),
            retrieve_index=to_device(trees.retrieve_index),
            retrieve_next_token=to_device(trees.retrieve_next_token),
            retrieve_next_sibling=to_device(trees.retrieve_next_sibling),
        )
