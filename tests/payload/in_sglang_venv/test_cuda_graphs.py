"""What the target's and the draft's CUDA graphs are captured with."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang_ddtree import cuda_graphs
from sglang_ddtree.ddtree_info import DDTreeVerifyInput


@pytest.mark.parametrize("algorithm", ["DDTREE", "DFLASH"])
@pytest.mark.parametrize("is_draft", [False, True])
def test_only_the_targets_graph_is_captured_under_a_tree_mask(monkeypatch, algorithm, is_draft):
    mask = torch.ones(8, dtype=torch.bool)
    plain = SimpleNamespace(draft_token_num=17, capture_hidden_mode=CaptureHiddenMode.FULL)
    monkeypatch.setattr(
        "sglang.srt.runtime_context.get_spec", lambda: SimpleNamespace(speculative_algorithm=algorithm)
    )
    runner = SimpleNamespace(
        buffers=SimpleNamespace(custom_mask=mask), model_runner=SimpleNamespace(is_draft_worker=is_draft)
    )
    for found in (
        cuda_graphs.get_spec_info(lambda _runner, _tokens: plain, runner, 34),
        cuda_graphs.create_dummy_verify_input(lambda *_: plain, None, mask, 17, is_draft),
    ):
        if algorithm == "DFLASH" or is_draft:
            assert found is plain
        else:
            assert isinstance(found, DDTreeVerifyInput) and found.is_verify_input()
            assert found.custom_mask is mask
            assert (found.draft_token_num, found.num_tokens_per_req) == (17, 17)
            assert found.capture_hidden_mode == CaptureHiddenMode.FULL
