"""The budget by load: what a schedule says, and what is no schedule. Plain Python: it runs without torch."""

import pytest
from sglang_ddtree.budget_schedule import TreeShape, parse_budget_schedule, tree_shape, tree_shapes

TEXT = "1:64,4:32,16:0"


def test_the_budget_is_that_of_the_last_batch_size_reached():
    schedule = parse_budget_schedule(TEXT)
    assert [schedule.budget_at(size) for size in (1, 3, 4, 15, 16, 500)] == [64, 64, 32, 32, 0, 0]
    assert schedule.largest_budget == 64
    assert parse_budget_schedule(" 1 : 5 ") == ((1, 5),)
    assert parse_budget_schedule("1:1").budget_at(9) == 1, "the smallest tree"


def test_a_budget_of_zero_is_the_drafts_chain():
    options = {"budget": 64, "topk": 48, "schedule": parse_budget_schedule(TEXT), "block_size": 8}
    assert tree_shape(2, **options) == TreeShape(64, 48)
    assert tree_shape(4, **options) == TreeShape(32, 32)
    assert tree_shape(16, **options) == TreeShape(7, 1)
    assert tree_shapes(**options) == [TreeShape(64, 48), TreeShape(32, 32), TreeShape(7, 1)]
    assert tree_shapes(**{**options, "schedule": None}) == [TreeShape(64, 48)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not BATCH_SIZE:BUDGET"),
        ("64", "'64' is not"),
        ("1:64,", "'' is not"),
        ("1:64;4:32", "'1:64;4:32' is not"),
        ("1:-3", "'1:-3' is not"),
        ("1:6.5", "'1:6.5' is not"),
        ("1:64,4:many", "'4:many' is not"),
        ("1:\u0663", "is not"),
        ("1:" + "9" * 5000, "is not"),
        ("2:64", "the first batch size must be 1, not 2"),
        ("1:0", "the first budget must be at least 1"),
        ("1:64,4:32,4:16", "batch sizes must rise, but 4 follows 4"),
        ("1:64,8:32,4:16", "batch sizes must rise, but 4 follows 8"),
        ("1:64,4:64", "budgets must fall, but 64 follows 64"),
        ("1:16,4:32", "budgets must fall, but 32 follows 16"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(text, reason):
    with pytest.raises(ValueError, match="--speculative-ddtree-budget-schedule") as error:
        parse_budget_schedule(text)
    assert reason in str(error.value) and '"1:64,4:32,16:0"' in str(error.value)
    assert "\n" not in str(error.value)
