"""Is a port as good as figures that were measured elsewhere (`baselines/*.json`)? Pure.

A table is the content of such a file: {"model", "draft", "source", "entries": [{"dataset", "temperature",
"budget" or "best_of", "accept_length", "steps_per_token"}]}; the controller has checked it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .agreement import judge_acceptance
from .verdict import Verdict, worst_of

# Our choice: room for other kernels and another dtype, and far less than a broken port loses (15 % in a
# public one).
TOLERANCE = 0.03


@dataclass(frozen=True)
class Measured:
    """What a server under test shows over a data set's prompts."""

    model: str
    draft: str
    dataset: str
    budget: int
    accept_length: float
    steps_per_token: float | None = None
    temperature: float = 0.0


def key(name: str) -> str:
    """A data set's name as it is compared."""
    return "".join(c for c in name.casefold() if c not in " -_")


def compare(measured: Measured, table: dict[str, Any], tolerance: float = TOLERANCE) -> Verdict:
    """Another model or draft, or no such entry: inconclusive. tolerance: relative; only worse counts."""
    for what, here, there in (
        ("model", measured.model, str(table["model"])),
        ("draft", measured.draft, str(table["draft"])),
    ):
        if model_name(here) != model_name(there):
            reason = f"the baseline is for {what} {there}, here it is {here or 'unknown'}"
            return Verdict("inconclusive", reason, {"expected": there, "found": here})
    same = [
        e
        for e in table["entries"]
        if key(e["dataset"]) == key(measured.dataset) and e["temperature"] == measured.temperature
    ]
    entry = next((e for e in same if e["budget"] == measured.budget), None)
    if entry is None:
        ordered = sorted(same, key=lambda e: (e["budget"] is None, e["budget"] or 0))
        near = [f"{arm(e['budget'], e['best_of'])} {e['accept_length']:g}" for e in ordered]
        known = f"; it has {', '.join(near)}" if near else ""
        at = f"{measured.dataset} at budget {measured.budget}, temperature {measured.temperature:g}"
        return Verdict("inconclusive", f"the baseline has no figure for {at}{known}", {"near": near})
    against = f"baseline ({entry['source'] or table['source']})"
    judged = [
        judge_acceptance(
            measured.accept_length, entry["accept_length"], tolerance, what="accept length", against=against
        )
    ]
    if entry["steps_per_token"] is not None and measured.steps_per_token is not None:
        judged.append(
            judge_acceptance(
                measured.steps_per_token,
                entry["steps_per_token"],
                tolerance,
                what="verify steps per token",
                against=against,
                higher_is_better=False,
            )
        )
    return worst_of(judged)


def arm(budget: int | None, best_of: list[int]) -> str:
    """`chain`, `budget 64`, or `best of 16, 32, 64`."""
    if budget is None:
        return f"best of {', '.join(map(str, best_of))}"
    return f"budget {budget}" if budget else "chain"


def model_name(name: str) -> str:
    """The last part of a path or a hub name: `/models/Qwen3-8B` and `Qwen/Qwen3-8B` are one model."""
    return name.rstrip("/").rsplit("/", 1)[-1].casefold()


def budget_of(info: dict[str, Any]) -> int:
    """Draft nodes without the root that a server was started with; 0 for the chain. From /server_info.

    DDTREE tells SGLang its node count, the budget and the root, as `speculative_num_draft_tokens`.
    """
    if str(info.get("speculative_algorithm") or "").upper() != "DDTREE":
        return 0
    given = info.get("speculative_ddtree_budget")
    return int(given) if given else max(0, int(info.get("speculative_num_draft_tokens") or 1) - 1)
