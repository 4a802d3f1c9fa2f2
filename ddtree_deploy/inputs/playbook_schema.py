"""The kinds of steps: their options in YAML, their order, and their form on the wire."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from ddtree_deploy.inputs.yaml.models import Duration, Model, Size, Timeout
from ddtree_deploy.onhost.wire.kinds import TABLE

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?$")
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Ratio = Annotated[float, Field(gt=0, le=1000)]
Share = Annotated[float, Field(ge=0, le=1)]


class StepModel(Model):
    """What every step may say."""

    timeout: Timeout | None = None

    def wire(self) -> dict[str, Any]:
        """StepSpec.options."""
        return {}


class Preflight(StepModel):
    min_free: Size = 1024**3

    def wire(self) -> dict[str, Any]:
        return {"min_free_bytes": self.min_free}


class Smoke(StepModel):
    checks: list[str] | None = None  # names from payload.yaml; None: all

    def wire(self) -> dict[str, Any]:
        return {"checks": self.checks}


class Bench(Model):
    num_prompts: Count = 32
    concurrency: Count = 4
    output_len: Annotated[int, Field(ge=4, le=1_000_000)] = 32  # SGLang's client refuses less
    rounds: Annotated[int, Field(ge=1, le=100)] = 8  # that count; a warm-up round comes before them
    min_round: Duration = 5.0  # a shorter round runs its prompts again
    also: list[Count] = Field(default_factory=list)  # concurrencies that are reported, not judged

    def wire(self) -> dict[str, Any]:
        """The options of `onhost.measure.Bench`."""
        return {**self.model_dump(exclude={"min_round"}), "min_round_s": self.min_round}


class Baseline(StepModel):
    prompts: str = "prompts.jsonl"  # relative to the playbook
    tokens: Count = 8
    max_new_tokens: Count = 32
    bench: Bench | None = Field(default_factory=Bench)

    def wire(self) -> dict[str, Any]:
        return {
            "prompts": PROMPTS,
            "tokens": self.tokens,
            "max_new_tokens": self.max_new_tokens,
            "bench": self.bench.wire() if self.bench else None,
        }


class Stop(StepModel):
    drain: Duration | None = None  # None: as hosts.yaml says
    limit: Timeout | None = None
    kill: bool | None = None

    def wire(self) -> dict[str, Any]:
        given = {"drain_s": self.drain, "limit_s": self.limit, "kill": self.kill}
        return {key: value for key, value in given.items() if value is not None}


class Health(StepModel):
    requests: Count = 3
    need: Count = 3
    max_new_tokens: Count = 8
    deadline: Timeout = 120.0

    @model_validator(mode="after")
    def _need(self) -> Health:
        if self.need > self.requests:
            raise ValueError(f"need ({self.need}) is more than requests ({self.requests})")
        return self

    def wire(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "need": self.need,
            "max_new_tokens": self.max_new_tokens,
            "deadline_s": self.deadline,
        }


class Tokens(StepModel):
    epsilon: Annotated[float, Field(gt=0, le=1)] | None = None  # None: as the reference against itself
    max_tie_share: Share | None = None
    golden: str | None = None  # relative to the playbook; None: the baseline of this run

    def wire(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "max_tie_share": self.max_tie_share}


class Acceptance(StepModel):
    max_steps_ratio: Annotated[float, Field(ge=1, le=1000)] = 1.0
    against: str | None = None  # a baseline file, relative to the playbook
    dataset: str | None = None  # which of its data sets the prompts are
    tolerance: Share = 0.03
    max_new_tokens: Count = 512

    @model_validator(mode="after")
    def _both(self) -> Acceptance:
        if (self.against is None) != (self.dataset is None):
            raise ValueError("against (a baseline file) and dataset (which of its data sets) belong together")
        return self

    def wire(self) -> dict[str, Any]:
        return {
            "max_steps_ratio": self.max_steps_ratio,
            "dataset": self.dataset,
            "tolerance": self.tolerance,
            "max_new_tokens": self.max_new_tokens,
        }


class Benchmark(StepModel):
    min_ratio: Ratio | None = 0.95  # None: speed is reported, not judged
    assume_restart_sd: Annotated[float, Field(gt=0, le=0.5)] | None = None
    expected_ratio: Ratio = 1.0
    host_change: Annotated[float, Field(gt=0, le=10)] = 0.10
    prompts: str | None = None  # for a playbook without a baseline
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
        own = {
            "min_ratio": self.min_ratio,
            "assume_restart_sd": self.assume_restart_sd,
            "expected_ratio": self.expected_ratio,
            "host_change": self.host_change,
        }
        return own | ({"bench": self.bench.wire()} if self.bench else {})


class Soak(StepModel):
    requests: Count = 200
    concurrency: Count = 4
    max_new_tokens: Count = 16
    hang_after: Timeout = 60.0
    max_memory_growth: Annotated[float, Field(ge=0, le=100)] = 0.1

    def wire(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "concurrency": self.concurrency,
            "max_new_tokens": self.max_new_tokens,
            "hang_after_s": self.hang_after,
            "max_memory_growth": self.max_memory_growth,
        }


class Unlock(StepModel):
    settle: Annotated[Duration, Field(le=600)] = 10.0  # the last look comes no earlier after the start

    @model_validator(mode="after")
    def _time(self) -> Unlock:
        if self.timeout is not None and self.timeout <= self.settle:
            raise ValueError(f"timeout ({self.timeout:g} s) is not longer than settle ({self.settle:g} s)")
        return self

    def wire(self) -> dict[str, Any]:
        return {"settle_s": self.settle}


class Run(StepModel):
    name: str
    command: list[str]
    undo: list[str] | None = None
    user: str = ""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError(f"{value!r} is not a name: letters, digits, `.`, `_`, `-`")
        if value in KINDS:
            raise ValueError(f"{value!r} is the name of a step kind; call it something else")
        return value

    @field_validator("command", "undo")
    @classmethod
    def _command(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and not (value and value[0]):
            raise ValueError("the command is empty")
        return value

    @field_validator("user")
    @classmethod
    def _user(cls, value: str) -> str:
        if value and not _USER.match(value):
            raise ValueError(f"{value!r} is not a user name")
        return value

    def wire(self) -> dict[str, Any]:
        return {"command": self.command, "undo": self.undo, "user": self.user}


# Where the files of the playbook lie in the payload archive.
PROMPTS = "attachments/prompts.jsonl"
GOLDEN = "attachments/golden.json"
MIN_ROUNDS = 5  # fewer cannot be judged: onhost/speed_gate.py

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
