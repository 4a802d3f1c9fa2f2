"""What a worker on a hybrid target says at its start of the states that it keeps per tree node."""

import logging
from types import SimpleNamespace

import pytest
import torch
from sglang_ddtree.recurrent_states import log_states, state_dtypes

LAYERS, REQUESTS, NODES = 2, 9, 17


def pool(conv, temporal):
    """A pool whose windows and states have 3 * 4 and 5 * 8 entries a node."""
    cache = SimpleNamespace(
        conv=[torch.empty(LAYERS, REQUESTS, 3, 4, dtype=conv)],
        temporal=torch.empty(LAYERS, REQUESTS, 5, 8, dtype=temporal),
        intermediate_conv_window=[torch.empty(LAYERS, REQUESTS, NODES, 3, 4, dtype=conv)],
        intermediate_ssm=torch.empty(LAYERS, REQUESTS, NODES, 5, 8, dtype=temporal),
    )
    return SimpleNamespace(get_speculative_mamba2_params_all_layers=lambda: cache)


def test_the_memory_of_the_states_is_told(caplog):
    with caplog.at_level(logging.INFO):
        log_states(pool(torch.float32, torch.float32), NODES, torch.float32)
    size = LAYERS * REQUESTS * NODES * (3 * 4 + 5 * 8) * 4 / 2**20
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert f"take {size:.1f} MiB (9 requests of 17 nodes)" in caplog.text


@pytest.mark.parametrize(("model", "warned"), [(torch.float32, True), (torch.bfloat16, False)])
def test_states_that_are_rougher_than_the_model_are_named(caplog, model, warned):
    states = pool(torch.bfloat16, torch.float32)
    assert state_dtypes(states) == {torch.bfloat16, torch.float32}
    log_states(states, NODES, model)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == warned
    if warned:
        assert "kept in torch.bfloat16, the model computes in torch.float32" in told[0]
        assert "SGLANG_MAMBA_CONV_DTYPE" in told[0]
