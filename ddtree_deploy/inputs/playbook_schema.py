"""The kinds of steps: their options in YAML, their order, and their form on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from ddtree_deploy.inputs.yaml.models import Duration, Model, Name, Size, Timeout, UserOrNone
from ddtree_deploy.onhost.wire.kinds import TABLE

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Ratio = Annotated[float, Field(gt=0, le=1000)]
Share = Annotated[float, Field(ge=0, le=1)]


class StepModel(Model):
    """What every step may say."""

    timeout: Timeout | None = Field(default=None, exclude=True)

    def wire(self) -> dict[str, Any]:
        """StepSpec.options: the fields under their names on the wire, which have units."""
        return self.model_dump(by_alias=True)


class Asking(StepModel):
    """A step whose requests the server has to answer."""

    # Without an answer for so long (for each 128 tokens of it) the server hangs, and the step fails.
    hang_after: Timeout = Field(default=60.0, serialization_alias="hang_after_s")


class Preflight(StepModel):
    min_free: Size = Field(default=1024**3, serialization_alias="min_free_bytes")


class Smoke(StepModel):
    checks: list[str] | None = None  # names from payload.yaml; None: all


class Bench(Model):
    num_prompts: Count = 32
    concurrency: Count = 4
    output_len: Annotated[int, Field(ge=4, le=1_000_000)] = 32  # SGLang's client refuses less
    rounds: Annotated[int, Field(ge=1, le=100)] = 8  # that count; a warm-up round comes before them
    also: list[Count] = Field(default_factory=list)  # concurrencies that are reported, not judged
    # A shorter round runs its prompts again.
    min_round: Duration = Field(default=5.0, serialization_alias="min_round_s")


class Baseline(Asking):
    prompts: str = "prompts.jsonl"  # relative to the playbook
    tokens: Count = 8
    max_new_tokens: Count = 32
    bench: Bench | None = Field(default_factory=Bench)

    def wire(self) -> dict[str, Any]:
        return {**super().wire(), "prompts": PROMPTS}


class Stop(StepModel):
    drain: Duration | None = Field(default=None, serialization_alias="drain_s")  # None: as hosts.yaml says
    limit: Timeout | None = Field(default=None, serialization_alias="limit_s")
    kill: bool | None = None

    def wire(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)


class Health(StepModel):
    requests: Count = 3
    need: Count = 3
    max_new_tokens: Count = 8
    deadline: Timeout = Field(default=120.0, serialization_alias="deadline_s")

    @model_validator(mode="after")
    def _need(self) -> Health:
        if self.need > self.requests:
            raise ValueError(f"need ({self.need}) is more than requests ({self.requests})")
        return self


class Tokens(Asking):
    epsilon: Annotated[float, Field(gt=0, le=1)] | None = None  # None: as the reference against itself
    max_tie_share: Share | None = None
    # Relative to the playbook; None: the baseline of this run.
    golden: str | None = Field(default=None, exclude=True)


class Acceptance(Asking):
    max_steps_ratio: Annotated[float, Field(ge=1, le=1000)] = 1.0
    against: str | None = Field(default=None, exclude=True)  # a baseline file, relative to the playbook
    dataset: str | None = None  # which of its data sets the prompts are
    tolerance: Share = 0.03
    max_new_tokens: Count = 512

    @model_validator(mode="after")
    def _both(self) -> Acceptance:
        if (self.against is None) != (self.dataset is None):
            raise ValueError("against (a baseline file) and dataset (which of its data sets) belong together")
        return self


class Benchmark(Asking):
    min_ratio: Ratio | None = 0.95  # None: speed is reported, not judged
    assume_restart_sd: Annotated[float, Field(gt=0, le=0.5)] | None = None
    expected_ratio: Ratio = 1.0
    host_change: Annotated[float, Field(gt=0, le=10)] = 0.10
    prompts: str | None = Field(default=None, exclude=True)  # for a playbook without a baseline
    bench: Bench | None = None

    @model_validator(mode="after")
    def _expected(self) -> Benchmark:
        if self.min_ratio is not None and self.expected_ratio <= self.min_ratio:
            raise ValueError(
                f"expected_ratio ({self.expected_ratio:g}) must be above min_ratio ({self.min_ratio:g}), "
                "or nothing could pass"
            )
        return self

    def wire(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude=None if self.bench else {"bench"})


class Soak(Asking):
    requests: Count = 200
    concurrency: Count = 4
    max_new_tokens: Count = 16
    max_memory_growth: Annotated[float, Field(ge=0, le=100)] = 0.1


class Unlock(StepModel):
    # The last look comes no earlier after the start.
    settle: Duration = Field(default=10.0, le=600, serialization_alias="settle_s")

    @model_validator(mode="after")
    def _time(self) -> Unlock:
        if self.timeout is not None and self.timeout <= self.settle:
            raise ValueError(f"timeout ({self.timeout:g} s) is not longer than settle ({self.settle:g} s)")
        return self


class Run(StepModel):
    name: Name = Field(exclude=True)
    command: list[str]
    undo: list[str] | None = None
    user: UserOrNone = ""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if value in KINDS:
            raise ValueError(f"{value!r} is the name of a step kind; call it something else")
        return value

    @field_validator("command", "undo")
    @classmethod
    def _command(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and not (value and value[0]):
            raise ValueError("the command is empty")
        return value


# Where the files of the playbook lie in the payload archive.
PROMPTS = "attachments/prompts.jsonl"
GOLDEN = "attachments/golden.json"
MIN_ROUNDS = 5  # fewer cannot be judged: onhost/judge/speed.py

_MODELS: dict[str, type[StepModel]] = {
    "preflight": Preflight,
    "smoke": Smoke,
    "baseline": Baseline,
    "stop": Stop,
    "health": Health,
    "tokens": Tokens,
    "acceptance": Acceptance,
    "benchmark": Benchmark,
    "soak": Soak,
    "unlock": Unlock,
    "run": Run,
}
# In the order in which they have to come.
KINDS = {name: _MODELS.get(name, StepModel) for name, kind in TABLE.items() if kind.in_playbooks}

REQUIRED = {
    "rollout": ("lock", "preflight", "backup", "stage", "install", "unlock"),
    "rollback": ("lock", "preflight", "backup", "stage", "install", "unlock"),
    "verify": ("lock", "stage", "unlock"),
}
# action -> kinds that have no place in it, and why
FORBIDDEN = {
    "rollout": ((), ""),
    "rollback": (("local", "smoke"), "a rollback: there is no payload"),
    "verify": (
        ("local", "backup", "compile", "smoke", "stop", "install", "start"),
        "a verify: it installs nothing and leaves the service alone",
    ),
}
