"""The verdict on the serving path, as data."""

from types import SimpleNamespace

import pytest
import torch
from sglang_ddtree import self_check
from sglang_ddtree.budget_schedule import TreeShape
from sglang_ddtree.self_check import (
    NodeLogits,
    check_verify_path,
    judge,
    random_candidates,
    roughest_dtype,
    strays_allowed,
    tolerance_of,
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
    assert "no numbers (second" in verdict.problem
    logits = node_logits()
    logits.served[2] = logits.alone[1]
    assert judge(logits, 0.1).where == "third" and judge(logits, 0.1).problem


def test_where_experts_are_routed_a_stray_is_no_wrong_mask():
    logits = node_logits()
    logits.served[2] = logits.alone[1]
    verdict = judge(logits, 0.1, strays=1)
    assert verdict.problem is None and verdict.worst < 0.1 < verdict.worst_stray
    logits.served[1] = logits.alone[0]
    assert judge(logits, 0.1, strays=1).problem


def test_a_node_without_numbers_is_no_stray():
    logits = node_logits()
    logits.served[2, 5] = torch.nan
    assert "no numbers" in judge(logits, 0.1, strays=1).problem


def runner(dtype=torch.bfloat16, states=None, **config):
    cache = SimpleNamespace(conv=[torch.zeros(1, dtype=states)], temporal=torch.zeros(1))
    return SimpleNamespace(
        dtype=dtype,
        attn_backend=None,
        decode_cuda_graph_runner=None,
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(**config)),
        req_to_token_pool=SimpleNamespace(get_speculative_mamba2_params_all_layers=lambda: cache),
    )


@pytest.mark.parametrize(
    ("dtype", "states", "config", "strays"),
    [
        (torch.bfloat16, None, {"num_experts": 8, "num_experts_per_tok": 2}, 4),
        (torch.float16, None, {"num_local_experts": 8, "num_experts_per_tok": 2}, 4),
        # How many experts a token goes to, under a name unknown here.
        (torch.bfloat16, None, {"n_routed_experts": 8}, 4),
        (torch.float32, None, {"num_experts": 8, "num_experts_per_tok": 2}, 0),
        (torch.bfloat16, None, {"num_experts": 8, "num_experts_per_tok": 8}, 0),
        (torch.bfloat16, None, {"num_experts": 1, "num_experts_per_tok": 1}, 0),
        (torch.bfloat16, None, {"num_experts": None}, 0),
        (torch.float32, torch.bfloat16, {}, 4),
        (torch.float32, torch.float32, {"num_experts": 8}, 0),
    ],
)
def test_strays_are_allowed_only_where_a_model_makes_much_of_rounding(
    monkeypatch, dtype, states, config, strays
):
    monkeypatch.setattr(self_check, "keeps_recurrent_states", lambda _runner: states is not None)
    assert strays_allowed(34, runner(dtype, states, **config)) == strays


def test_the_tolerance_is_that_of_the_roughest_type(monkeypatch):
    monkeypatch.setattr(self_check, "keeps_recurrent_states", lambda _runner: True)
    assert roughest_dtype(runner(torch.float32, torch.bfloat16)) == torch.bfloat16
    assert roughest_dtype(runner(torch.float16, torch.float32)) == torch.float16
    assert roughest_dtype(runner(torch.float32, torch.float32)) == torch.float32
    assert tolerance_of(torch.float32) < tolerance_of(torch.float16) < tolerance_of(torch.bfloat16)


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
    monkeypatch.setattr(self_check, "node_logits", lambda _worker, _shape: node_logits())
    monkeypatch.setattr(self_check, "keeps_recurrent_states", lambda _runner: False)
    target = runner(torch.float32)
    target.decode_cuda_graph_runner = graphs
    worker = SimpleNamespace(
        model_runner=target,
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
