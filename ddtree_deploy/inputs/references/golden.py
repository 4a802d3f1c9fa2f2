"""Golden files: greedy answers of a server known to be right, compared with for as long as they fit.

{"format", "host", "recorded", "identity": {model, sglang, gpu, dtype, ...}, "epsilon", "tie_share",
"max_new_tokens", "texts": [prompt], "sample": {prompts, outputs, completion, verify_steps, speculative,
logprobs, top2, steps_per_token, accept_length}}, JSON; lists by prompt, log-probs natural.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.yaml import document
from ddtree_deploy.inputs.yaml.models import Model

FORMAT = 1


class SampleModel(Model):
    """`onhost.measure.greedy.Sample`, as it was journalled."""

    prompts: list[str] = Field(min_length=1)
    outputs: list[list[int]]
    completion: list[int]
    verify_steps: list[int | None]
    speculative: str
    logprobs: list[list[float]]
    top2: list[list[list[Any]]]
    refused: str = ""
    steps_per_token: float | None
    accept_length: float | None


class Golden(Model):
    """One golden file."""

    format: Literal[1]
    host: str
    recorded: str
    identity: dict[str, str]
    epsilon: float = Field(gt=0)
    tie_share: float = Field(ge=0, le=1)
    max_new_tokens: int = Field(ge=1)
    texts: list[str]
    sample: SampleModel

    @model_validator(mode="after")
    def _lengths(self) -> Golden:
        count, sample = len(self.texts), self.sample
        for name in ("prompts", "outputs", "completion", "verify_steps"):
            if len(getattr(sample, name)) != count:
                raise ValueError(f"{len(getattr(sample, name))} {name} for {count} prompts")
        for name in ("logprobs", "top2"):
            rows = getattr(sample, name)
            if rows and [len(r) for r in rows] != [len(o) for o in sample.outputs]:
                raise ValueError(f"{name} do not go with the outputs")
        return self


def read(path: Path) -> bytes:
    """A golden file's bytes, checked. Raises InputError with file and field."""
    text, data = document.read_json(path, "golden file")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"format {found!r} is not known here, {FORMAT} is", file=path, field="format")
    try:
        Golden.model_validate(data)
    except ValidationError as error:  # not by the YAML reader: it takes JSON's 1e-06 for a text
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise InputError(message, file=path, field=field or "golden") from None
    return text.encode()


def of_baseline(host: str, recorded: str, result: dict[str, Any]) -> dict[str, Any]:
    """A golden file's content out of the figures of a `baseline` step."""
    kept = ("identity", "epsilon", "tie_share", "max_new_tokens", "texts", "sample")
    return {"format": FORMAT, "host": host, "recorded": recorded, **{k: result[k] for k in kept}}


def write(data: dict[str, Any], path: Path) -> None:
    """Write a golden file and read it back. Raises InputError."""
    text = json.dumps(data, separators=(",", ":")) + "\n"
    document.write_checked(path, text, read, folders=True)
