"""Which budget is best: the table, its interval, the schedule; the command's input; the plots. As data."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ddtree_deploy.commands import sweep
from ddtree_deploy.errors import InputError
from ddtree_deploy.onhost.judge import sweep_table
from ddtree_deploy.onhost.judge.stats import RestartSpread
from ddtree_deploy.report import html

QUIET = RestartSpread(0.01, 8)


def blocks(
    speeds: dict[tuple[int, int], float], passes: int = 2, noise: float = 0.01
) -> list[dict[str, Any]]:
    """Blocks of six rounds around `speeds` ((concurrency, budget) -> tokens/s)."""
    rng = random.Random(1)
    made = []
    for turn in range(1, passes + 1):
        for budget in sorted({b for _, b in speeds}):
            by = {
                str(c): {
                    "rounds": [speed * rng.gauss(1, noise) for _ in range(6)],
                    "ttft_ms": 10.0,
                    "tpot_ms": 2.0,
                }
                for (c, b), speed in speeds.items()
                if b == budget
            }
            made.append(
                {
                    "pass": turn,
                    "budget": budget,
                    "repeats": 1,
                    "steps_per_token": 1 / (1.5 + budget / 16),
                    "accept_length": 1.5 + budget / 16,
                    "loop": 0.1,
                    "by_concurrency": by,
                }
            )
    return made


def test_the_best_budget_is_found_at_each_concurrency_and_becomes_a_schedule() -> None:
    """A tree pays at low load, and costs at high load: there the chain stays."""
    speeds = {(1, 0): 100, (1, 8): 130, (1, 16): 160, (4, 0): 300, (4, 8): 360, (4, 16): 320}
    speeds |= {(16, 0): 900, (16, 8): 800, (16, 16): 600}
    found = sweep_table.table(blocks(speeds), QUIET)
    assert [(r["concurrency"], r["budget"]) for r in found["best"]] == [(1, 16), (4, 8), (16, 0)]
    assert found["schedule"] == "1:16,4:8,16:0"
    assert found["best"][0]["equals"] == []
    low, high = found["best"][0]["interval"]
    assert low < 1.6 < high and low > 1.5
    row = next(r for r in found["rows"] if (r["concurrency"], r["budget"]) == (4, 8))
    assert (
        row["rounds"] == 12 and row["accept_length"] == 2.0 and row["ratio"] == pytest.approx(1.2, rel=0.02)
    )
    shown = "\n".join(sweep.lines("gpu1", found))
    assert "--speculative-ddtree-budget-schedule 1:16,4:8,16:0" in shown
    assert "best at concurrency 16: the chain" in shown


def test_what_cannot_be_told_from_the_chain_is_not_called_better() -> None:
    found = sweep_table.table(blocks({(4, 0): 100, (4, 8): 103}), RestartSpread(0.08, 6))
    assert found["best"] == [{"concurrency": 4, "budget": 0, "ratio": 1.0, "interval": None, "equals": [8]}]
    assert found["schedule"] == "1:0"


def test_budgets_that_are_as_good_are_named() -> None:
    found = sweep_table.table(blocks({(4, 0): 100, (4, 8): 150, (4, 16): 151}), QUIET)
    (best,) = found["best"]
    assert {best["budget"], *best["equals"]} == {8, 16}


def test_without_a_calibration_the_passes_tell_the_restart_spread() -> None:
    made = blocks({(4, 0): 100, (4, 8): 150}, passes=3)
    for b in made:  # restarts that differ by 10 %
        factor = {1: 0.9, 2: 1.0, 3: 1.1}[b["pass"]]
        b["by_concurrency"]["4"]["rounds"] = [r * factor for r in b["by_concurrency"]["4"]["rounds"]]
    spread, source = sweep_table.restart_spread(made, None)
    assert spread.sd == pytest.approx(0.1, rel=0.1) and "4 degrees of freedom" in source
    _, unknown = sweep_table.restart_spread(blocks({(4, 0): 100, (4, 8): 150}, passes=1), None)
    assert "not known" in unknown


def test_without_the_chain_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(ValueError, match="no round of the chain"):
        sweep_table.table(blocks({(4, 8): 150}), QUIET)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4,x", "'4,x' is not a list of numbers such as 4,8,16"),
        ("", "'' is not a list"),
        ("0,8", "0 is not between 1 and 4096; the chain is measured in any case"),
        ("5000", "5000 is not between 1 and 4096"),
    ],
)
def test_a_list_of_budgets_is_checked(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        sweep.numbers(text, "--budgets", 1, 4096)
    assert says in caught.value.render()


def test_a_list_keeps_its_order_and_drops_what_comes_twice() -> None:
    assert sweep.numbers("16, 4,16", "--budgets", 1, 4096) == [16, 4]


def test_the_report_draws_the_figures_against_the_budget() -> None:
    found = sweep_table.table(blocks({(1, 0): 100, (1, 8): 130, (4, 0): 300, (4, 8): 360}), QUIET)
    drawn = html.sweep([{"kind": "sweep", "figures": found}])
    assert drawn is not None and len(drawn["plots"]) == 4
    assert all("<svg" in p and "concurrency 4" in p for p in drawn["plots"])
    assert html.sweep([{"kind": "tokens", "figures": {}}]) is None


def test_a_budget_that_was_measured_while_the_host_ran_slower_is_not_compared() -> None:
    speeds = {(4, 0): 100, (4, 8): 40, (4, 16): 150}
    made = blocks(speeds)
    for block in made:
        block["loop"] *= {8: 2.5, 16: 1.05}.get(block["budget"], 1.0)
    found = sweep_table.table(made, QUIET)
    rows = {r["budget"]: r for r in found["rows"]}
    assert rows[8]["interval"] is None and rows[8]["host_percent"] == -60.0 and rows[8]["host_moved"]
    assert rows[16]["interval"] is not None and rows[16]["host_percent"] == pytest.approx(-4.8)
    assert not rows[16]["host_moved"]
    assert [r["budget"] for r in found["best"]] == [16]
    (said,) = sweep.moved_hosts(found["rows"])
    assert said.startswith("budget 8: not compared, the host itself ran 60 % slower than during the chain's")
    assert said in sweep.lines("box", found)
    drawn = html.sweep([{"kind": "sweep", "figures": found}])
    assert drawn is not None and [r["budget"] for r in drawn["rows"] if r["host_moved"]] == [8]
    for block in made:
        del block["loop"]
    unknown = sweep_table.table(made, QUIET)["rows"]
    assert [r["host_percent"] for r in unknown] == [None] * 3 and unknown[1]["interval"] is not None
