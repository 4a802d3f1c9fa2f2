"""``--speculative-ddtree-budget-schedule``: the size of the trees by the number of requests that run.

Verify is nearly free until its tokens fill the device, so a budget that pays for one request costs at
sixteen.  A schedule has few, fixed budgets: each is one verify width.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

OPTION = "--speculative-ddtree-budget-schedule"
EXAMPLE = '"1:64,4:32,16:0"'
CHAIN = 0  # as a budget: the draft's best token at each position, as DFLASH has it


class TreeShape(NamedTuple):
    """The trees of one step.

    Attributes:
        budget: draft nodes at most; verify runs ``budget + 1`` tokens a request.
        topk: candidates kept per draft position.
    """

    budget: int
    topk: int


class BudgetSchedule(tuple[tuple[int, int], ...]):
    """Pairs ``(smallest batch size, budget)``, batch sizes rising from 1, budgets falling."""

    __slots__ = ()

    @property
    def largest_budget(self) -> int:
        return self[0][1]

    def budget_at(self, batch_size: int) -> int:
        """The budget of the last pair whose batch size is reached."""
        return next(budget for smallest, budget in reversed(self) if batch_size >= smallest)


def parse_budget_schedule(text: str) -> BudgetSchedule:
    """Parse ``"batch size:budget,..."``.

    Raises:
        ValueError: in one line, with what is wrong and an example.
    """

    def wrong(reason: str) -> ValueError:
        return ValueError(f"{OPTION} {text!r}: {reason}; example: {EXAMPLE}")

    pairs = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*:\s*(\d{1,9})\s*", part, re.ASCII)
        if match is None:
            raise wrong(f"{part.strip()!r} is not BATCH_SIZE:BUDGET")
        pairs.append((int(match[1]), int(match[2])))
    if pairs[0][0] != 1:
        raise wrong(f"the first batch size must be 1, not {pairs[0][0]}")
    if pairs[0][1] < 1:
        raise wrong("the first budget must be at least 1; for a chain at every batch size use DFLASH")
    for (smaller, larger_budget), (batch_size, budget) in pairwise(pairs):
        if batch_size <= smaller:
            raise wrong(f"batch sizes must rise, but {batch_size} follows {smaller}")
        if budget >= larger_budget:
            raise wrong(f"budgets must fall, but {budget} follows {larger_budget}")
    return BudgetSchedule(pairs)


def tree_shape(
    batch_size: int, *, budget: int, topk: int, schedule: BudgetSchedule | None, block_size: int
) -> TreeShape:
    """The shape of the trees of a step over ``batch_size`` requests, for drafts of ``block_size`` tokens."""
    if schedule is not None:
        budget = schedule.budget_at(batch_size)
    if budget == CHAIN:
        return TreeShape(budget=block_size - 1, topk=1)
    return TreeShape(budget=budget, topk=min(topk, budget))


def tree_shapes(
    *, budget: int, topk: int, schedule: BudgetSchedule | None, block_size: int
) -> list[TreeShape]:
    """Every shape that can occur, the widest first."""
    sizes = [smallest for smallest, _ in schedule] if schedule is not None else [1]
    return [
        tree_shape(size, budget=budget, topk=topk, schedule=schedule, block_size=block_size) for size in sizes
    ]
