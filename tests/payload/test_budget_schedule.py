"""The budget by load, and the metrics that show it, on a real server."""

import re

import pytest
from serving import DDTREE, DRAFT, assert_equal, verified_trees
from sglang_venv import PROMPTS

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("v2_only")]

BLOCK = 8
CHAIN = BLOCK - 1  # what a budget of 0 verifies
SCHEDULE = "1:24,2:12,3:4,5:0"
BUDGETS = {1: 24, 2: 12, 4: 4, 8: CHAIN}  # by batch size


@pytest.fixture(scope="module")
def server(start):
    arguments = [option for option in DDTREE if option not in ("--speculative-ddtree-budget", "16")]
    assert DRAFT[0] in arguments
    return start(
        "ddtree with a schedule",
        [
            *arguments, "--speculative-ddtree-budget-schedule", SCHEDULE,
            "--enable-metrics", "--speculative-ddtree-debug-metrics",
        ],
    )  # fmt: skip


def metrics(server):
    """``sglang:ddtree_*`` samples by name and, of the trees, by budget."""
    status, text = server.request("/metrics")
    assert status == 200
    found = {}
    for name, labels, value in re.findall(r"^sglang:ddtree_(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        budget = re.search(r'budget="(\d+)"', labels)
        if "le=" not in labels:
            found[name + (f" {budget[1]}" if budget else "")] = float(value)
    return found


@pytest.mark.parametrize("batch", BUDGETS)
def test_the_output_is_the_same_at_every_budget_and_the_metrics_tell_it(server, reference, batch):
    before, earlier = server.log.stat().st_size, metrics(server)
    answers = server.generate(PROMPTS[:batch], batch=batch)
    assert_equal(f"budget {BUDGETS[batch]}", answers, reference.first(batch))
    lines = verified_trees(server, before)
    full = [line for line in lines if line["budget"] == BUDGETS[batch]]
    assert full, "the budget of this batch size was never in use"
    assert all(line["actual_nodes"] <= line["budget"] for line in lines)
    # Whoever ends first leaves a smaller batch behind, whose budget is larger.
    assert {line["budget"] for line in lines} <= {b for size, b in BUDGETS.items() if size <= batch}
    now = metrics(server)
    told = now[f"verified_trees_total {BUDGETS[batch]}"] - earlier.get(
        f"verified_trees_total {BUDGETS[batch]}", 0
    )
    assert told == len(full)
    assert now["budget"] == lines[-1]["budget"]
    assert now["accepted_nodes_sum"] - earlier.get("accepted_nodes_sum", 0) == sum(
        line["accepted_draft_count"] for line in lines
    )
    assert now["depth_count"] - earlier.get("depth_count", 0) == len(lines)
    assert now["verify_seconds_sum"] > 0 and now["build_seconds_sum"] > 0


def test_requests_that_join_and_leave_change_the_budget_in_mid_flight(server, reference):
    before = server.log.stat().st_size
    lengths = [8, 16, 24, 32, 40, 48, 56, 64]
    body = {
        "text": PROMPTS[:8],
        "sampling_params": [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in lengths],
    }
    status, answers = server.request("/generate", body)
    assert status == 200, answers
    assert [a["output_ids"] for a in answers] == [
        row[:n] for row, n in zip(reference.tokens, lengths, strict=False)
    ]
    assert {line["budget"] for line in verified_trees(server, before)} == {24, 12, 4, CHAIN}
