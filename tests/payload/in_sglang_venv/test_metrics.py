"""What is told of verified trees, and that a broken step is noticed."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang_ddtree.kernels.walk import AcceptedPaths
from sglang_ddtree.metrics import Stopwatch, TreeMetrics
from sglang_ddtree.prometheus import TreeExporter
from sglang_ddtree.tree_batch import build_ddtree_batch

# Two levels of two candidates, 4 nodes: [10] -> [20], [11]; [10] -> [20] and [21].
IDS = np.array([[[10, 11], [20, 21]]])
LOGPS = np.log(np.array([[[0.6, 0.4], [0.9, 0.1]]], dtype=np.float32))
REQS = [SimpleNamespace(rid="r")]


class Exporter:
    def __init__(self):
        self.steps = []

    def observe(self, **step):
        assert step.pop("build_seconds") >= 0 and step.pop("verify_seconds") >= 0
        self.steps.append(step)


@pytest.fixture
def trees():
    return build_ddtree_batch(IDS, LOGPS, 4)


def paths(accepted, bonus):
    """One request's path, as verify gives it."""
    index = torch.full((1, 3), -1, dtype=torch.int32)
    index[0, : len(accepted)] = torch.tensor(accepted)
    count = torch.tensor([len(accepted) - 1], dtype=torch.int32)
    return AcceptedPaths(index, count, count + 1, torch.zeros(1, 3), torch.tensor([bonus]), torch.zeros(5))


def node_of(trees, token):
    return trees.token_ids[0].tolist().index(token)


def record(trees, choices, path, *, debug=True, exporter=None, group=None):
    group = group or SimpleNamespace(world_size=1, rank_in_group=0)
    metrics = TreeMetrics(debug=debug, exporter=exporter, tp_group=group, device=torch.device("cpu"))
    assert metrics.enabled
    with Stopwatch() as building, metrics.on_device() as verifying:
        pass
    metrics.record(
        trees, torch.tensor([choices]), path, REQS, budget=4, building=building, verifying=verifying
    )


def choices(trees, root, *others):
    """The target's token at each node: ``root`` at the root, 99 elsewhere but for ``(token, choice)``."""
    row = [root, 99, 99, 99, 99]
    for token, choice in others:
        row[node_of(trees, token)] = choice
    return row


def test_a_sound_step_is_one_line_and_one_observation(trees, caplog):
    exporter = Exporter()
    with caplog.at_level(logging.INFO):
        record(trees, choices(trees, 11), paths([0, node_of(trees, 11)], 99), exporter=exporter)
    (line,) = caplog.messages
    told = json.loads(line.removeprefix("ddtree_verify "))
    assert (told["rid"], told["budget"], told["accepted_draft_count"], told["bonus_token_id"]) == (
        "r",
        4,
        1,
        99,
    )
    assert told["chain_accepted_draft_count"] == 0  # 11 is a sibling of the chain's 10
    assert exporter.steps == [{"budget": 4, "accepted": [1], "depths": [2]}]


@pytest.mark.parametrize(("accepted", "bonus"), [([0], 10), ([0, 1], 98)], ids=["too short", "other bonus"])
def test_a_walk_that_the_tree_contradicts_is_an_error(trees, caplog, accepted, bonus):
    assert node_of(trees, 10) == 1
    record(trees, choices(trees, 10), paths(accepted, bonus))
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert any("ddtree_invariant_broken: the walk differs" in error for error in errors)
    assert any("the chain would accept more" in error for error in errors) == (accepted == [0])


def test_ranks_whose_trees_differ_are_an_error_and_only_the_first_logs_trees(trees, caplog):
    def group(other, rank):
        def all_gather_into_tensor(output, own):
            output.copy_(torch.stack((own, own + other)).view_as(output))

        return SimpleNamespace(
            world_size=2, rank_in_group=rank, all_gather_into_tensor=all_gather_into_tensor
        )

    with caplog.at_level(logging.INFO):
        record(trees, choices(trees, 99), paths([0], 99), group=group(0, 1))
        assert caplog.messages == []
        record(trees, choices(trees, 99), paths([0], 99), group=group(1, 0))
    assert "ddtree_invariant_broken: the ranks built different trees" in caplog.messages[0]
    assert caplog.messages[1].startswith("ddtree_verify ")


def test_prometheus_gets_every_metric():
    from prometheus_client import REGISTRY

    exporter = TreeExporter({"model_name": "m"})
    for budget in (16, 7):
        exporter.observe(
            budget=budget, accepted=[2, 3], depths=[7, 7], build_seconds=1e-3, verify_seconds=1e-2
        )

    def value(name, **labels):
        return REGISTRY.get_sample_value(f"sglang:ddtree_{name}", {"model_name": "m", **labels})

    assert value("verified_trees_total", budget="16") == 2
    assert value("budget") == 7
    assert (value("accepted_nodes_count"), value("accepted_nodes_sum")) == (4, 10)
    assert (value("depth_count"), value("depth_sum")) == (4, 28)
    assert value("build_seconds_sum") == pytest.approx(2e-3)
    assert value("verify_seconds_sum") == pytest.approx(2e-2)
