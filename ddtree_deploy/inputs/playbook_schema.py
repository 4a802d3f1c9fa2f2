"""The kinds of steps: their options in YAML, their order, and their form on the wire."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from ddtree_deploy.inputs.values import Duration, Size, Timeout
from ddtree_deploy.inputs.yamlfile import Model

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?$")
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Ratio = Annotated[float, Field(gt=0, le=1000)]


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
    rounds: Annotated[int, Field(ge=1, le=100)] = 1


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
            "bench": self.bench.model_dump() if self.bench else None,
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
    max_ties: Annotated[int, Field(ge=0)] = 0

    def wire(self) -> dict[str, Any]:
        return {"max_ties": self.max_ties}


class Benchmark(StepModel):
    min_speed_ratio: Ratio = 0.5
    max_steps_ratio: Ratio = 1.0

    def wire(self) -> dict[str, Any]:
        return {"min_speed_ratio": self.min_speed_ratio, "max_steps_ratio": self.max_steps_ratio}


class Soak(StepModel):
    requests: Count = 200
    concurrency: Count = 4
    max_new_tokens: Count = 16
    hang_after: Timeout = 60.0

    def wire(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "concurrency": self.concurrency,
            "max_new_tokens": self.max_new_tokens,
            "hang_after_s": self.hang_after,
        }


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


PROMPTS = "attachments/prompts.jsonl"  # where the prompts lie in the payload archive

# In the order in which they have to come. `run` may stand anywhere between lock and unlock.
KINDS: dict[str, type[StepModel]] = {
    "local": StepModel,
    "lock": StepModel,
    "preflight": Preflight,
    "backup": StepModel,
    "stage": StepModel,
    "compile": StepModel,
    "smoke": Smoke,
    "baseline": Baseline,
    "stop": Stop,
    "install": StepModel,
    "start": StepModel,
    "health": Health,
    "tokens": Tokens,
    "benchmark": Benchmark,
    "soak": Soak,
    "unlock": StepModel,
    "run": Run,
}

# Seconds. stop and start are not here: theirs follow from the service's own limits (`plan.step_timeout`).
TIMEOUTS: dict[str, float] = {
    "local": 300,
    "lock": 900,  # recovers an orphaned run first
    "preflight": 120,
    "backup": 600,
    "stage": 300,
    "compile": 300,
    "smoke": 900,
    "baseline": 1800,
    "install": 300,
    "health": 600,
    "tokens": 900,
    "benchmark": 1800,
    "soak": 3600,
    "unlock": 60,
    "run": 600,
}

REQUIRED = {
    "rollout": ("lock", "preflight", "backup", "stage", "install", "unlock"),
    "rollback": ("lock", "preflight", "backup", "stage", "install", "unlock"),
}
# A rollback restores what a backup kept: there is no payload to check.
FORBIDDEN = {"rollout": (), "rollback": ("local", "smoke")}
# kind -> what has to be in the playbook for it to make sense
NEEDS = {
    "compile": "stage",
    "smoke": "stage",
    "stop": "start",
    "start": "stop",
    "health": "start",
    "tokens": "baseline",
    "benchmark": "baseline",
    "soak": "start",
}
