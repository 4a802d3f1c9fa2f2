"""What the serving gates compare with: the service before the stop, or a golden file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..context import Context, StepFailed
from ..judge.agreement import Continuation, identity_differences
from ..service import serving
from ..service.base import ServiceControl
from ..staging import stage
from . import greedy, identity
from .greedy import Prompts

PROMPTS = "attachments/prompts.jsonl"
GOLDEN = "attachments/golden.json"


@dataclass(frozen=True)
class Reference:
    """Greedy answers to compare with. epsilon, tie_share: what the reference showed against itself."""

    name: str
    prompts: Prompts
    max_new_tokens: int
    continuations: list[Continuation]
    epsilon: float
    tie_share: float
    speculative: str
    steps_per_token: float | None
    accept_length: float | None
    refused: str = ""

    @classmethod
    def of(cls, name: str, prompts: Prompts, recorded: dict[str, Any]) -> Reference:
        """From the result of a baseline step, or a golden file, which was made of one."""
        sample = recorded["sample"]
        return cls(
            name,
            prompts,
            max_new_tokens=int(recorded["max_new_tokens"]),
            continuations=greedy.continuations(sample),
            epsilon=float(recorded["epsilon"]),
            tie_share=float(recorded["tie_share"]),
            **{key: sample[key] for key in ("speculative", "steps_per_token", "accept_length")},
            refused=str(sample.get("refused", "")),
        )


def of_baseline(ctx: Context) -> Reference | None:
    """The service as the baseline step of this run found it; None where there was none."""
    before = serving.result_of(ctx, "baseline")
    if not before:
        return None
    sample = before["sample"]
    name = next((s.options.get("prompts", PROMPTS) for s in ctx.plan.steps if s.kind == "baseline"), PROMPTS)
    prompts = first(greedy.load_prompts(ctx, str(name)), len(sample["outputs"]))
    return Reference.of("the old service", prompts, before)


def of_golden(ctx: Context, control: ServiceControl) -> Reference:
    """The golden file of the plan. Raises StepFailed (inconclusive) when it is of another kind of server."""
    path = stage.payload_file(ctx, GOLDEN)
    golden = json.loads(path.read_text())  # checked by the controller
    here, _ = identity.of_server(ctx, control.endpoint)
    different = identity_differences(golden["identity"], here)
    if different:
        text = f"the golden file of {golden['host']} is no reference here: {'; '.join(different)}"
        raise StepFailed(text, verdict="inconclusive")
    prompts = Prompts(path, golden["texts"], golden["sample"]["prompts"])
    return Reference.of(f"the golden file of {golden['recorded']}", prompts, golden)


def has_golden(ctx: Context) -> bool:
    """Whether the plan brought a golden file."""
    return Path(stage.root(ctx) / "payload" / GOLDEN).is_file()


def find(ctx: Context, control: ServiceControl) -> Reference | None:
    """A golden file goes before the old service: it was chosen by somebody."""
    return of_golden(ctx, control) if has_golden(ctx) else of_baseline(ctx)


def first(prompts: Prompts, count: int) -> Prompts:
    """The first `count` prompts."""
    return Prompts(prompts.path, prompts.texts[:count], prompts.names[:count])


def measure(ctx: Context, control: ServiceControl, reference: Reference) -> greedy.Sample:
    """The same prompts asked of the service as it is now."""
    return greedy.sample(ctx, control.endpoint, reference.prompts, reference.max_new_tokens)


def sample_of(ctx: Context, control: ServiceControl, reference: Reference) -> dict[str, Any]:
    """The sample of an earlier gate of this run, on the same prompts, else a new one."""
    for kind in ("tokens", "acceptance"):
        sample = serving.result_of(ctx, kind).get("sample")
        if sample and sample["prompts"] == [c.prompt for c in reference.continuations]:
            return dict(sample)
    return measure(ctx, control, reference).to_dict()
