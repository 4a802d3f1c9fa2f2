"""The verdict on the serving path, as data, and what CUDA graphs are captured with."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang_ddtree import cuda_graphs
from sglang_ddtree.budget_schedule import TreeShape
from sglang_ddtree.ddtree_info import DDTreeVerifyInput
from sglang_ddtree.self_check import (
    NodeLogits,
    check_verify_path,
    has_routed_experts,
    judge,
    random_candidates,
)


def node_logits(noise=0.0, kin=((0, 1, 7), (0, 1, 7), (0, 2, 3))):
    generator = torch.Generator().manual_seed(0)
    alone = torch.randn(3, 100, generator=generator) * 4 + 20  # an offset is not size
    served = alone + torch.randn(3, 100, generator=generator) * 4 * noise
    return NodeLogits(["first", "second", "third"], list(kin), served, alone)


def test_rounding_passes_and_a_difference_is_named():
    assert judge(node_logits(1e-6), 0.01).problem is None
    verdict = judge(node_logits(0.05), 0.01)
    assert 0.03 < verdict.worst < 0.08
    assert f"{verdict.worst:.4g} of their size ({verdict.where}); 0.01 is allowed" in verdict.problem
    assert judge(node_logits(0.05), 0.1).problem is None


def test_one_wrong_node_and_a_nan_are_found():
    logits = node_logits()
    logits.served[1, 3] = torch.nan
    verdict = judge(logits, 0.01)
    assert verdict.problem and verdict.where == "second"
    logits = node_logits()
    logits.served[2] = logits.alone[1]
    assert judge(logits, 0.1).where == "third" and judge(logits, 0.1).problem


def test_where_experts_are_routed_a_stray_is_no_wrong_mask():
    logits = node_logits()
    logits.served[2] = logits.alone[1]
    assert judge(logits, 0.1, strays=1).problem is None
    logits.served[1] = logits.alone[0]
    assert judge(logits, 0.1, strays=1).problem
    assert has_routed_experts(SimpleNamespace(num_experts=8))
    assert not has_routed_experts(SimpleNamespace(num_experts=None, hidden_size=8))


def test_a_check_that_could_not_tell_a_wrong_mask_is_no_pass():
    logits = node_logits()
    logits.alone[1] = logits.alone[0]  # nodes alike in all but their ancestors, and alike in their logits
    logits.served[1] = logits.alone[0]
    assert "a wrong mask would pass" in judge(logits, 0.01).problem
    chain = node_logits(kin=((0, 1, 7), (0, 2, 7), (0, 3, 7)))
    assert judge(chain, 0.01).contrast is None and judge(chain, 0.01).problem is None


@pytest.mark.parametrize(
    ("graphs", "in_graph", "error"), [(None, False, False), (1, True, False), (1, False, True)]
)
def test_graphs_that_the_check_did_not_run_are_not_vouched_for(monkeypatch, graphs, in_graph, error):
    from sglang_ddtree import self_check

    monkeypatch.setattr(self_check, "_run", lambda _worker, _shape: node_logits())
    monkeypatch.setattr(self_check, "mambaish_config", lambda _config: None)
    runner = SimpleNamespace(
        dtype=torch.float32,
        attn_backend=None,
        decode_cuda_graph_runner=graphs,
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
    )
    worker = SimpleNamespace(
        model_runner=runner,
        verify_ran_in_graph=in_graph,
        max_nodes=17,
        tree_shapes=lambda: [TreeShape(budget=16, topk=8)],
    )
    if error:
        with pytest.raises(self_check.SelfCheckError, match="cannot vouch for the CUDA graphs"):
            check_verify_path(worker)
    else:
        check_verify_path(worker)


def test_random_candidates_are_ranked_and_distinct():
    ids, logps = random_candidates(torch.Generator().manual_seed(0), 2, 5, 8, 40)
    assert ids.shape == logps.shape == (2, 5, 8)
    assert (logps.diff(dim=-1) <= 0).all() and logps.exp().sum(-1).allclose(torch.ones(2, 5))
    assert all(len(set(row)) == 8 for row in ids.flatten(0, 1).tolist())


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
