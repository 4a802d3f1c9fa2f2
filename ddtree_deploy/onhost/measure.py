"""Measuring a server that serves: greedy outputs with their counters, and SGLang's own benchmark client."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from . import serving, staging, verdict
from .context import Context, StepFailed
from .http import Endpoint, Generation, HttpError, flush_cache, generate, server_info
from .service import ServiceControl

REQUEST_S = 300.0
_ROUND = re.compile(r"^DDTREE-BENCH round (\d+) of (\d+)")
_REQUESTS_DONE = re.compile(r"(\d+)/(\d+) \[")  # the client's progress bar


@dataclass(frozen=True)
class Prompts:
    """Prompts of the shipped file, in its order."""

    path: Path
    texts: list[str]


def load_prompts(ctx: Context, name: str) -> Prompts:
    """JSON lines in the format of SGLang's `custom` dataset: {"conversations": [{"content"}, {"content"}]}.

    Rows that its client would leave out are left out here, too. Raises StepFailed with the line number.
    """
    path = staging.payload_file(ctx, name)
    texts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            turns = row.get("conversations", row.get("conversation", []))
            if len(turns) >= 2:
                texts.append(str(turns[0].get("content", turns[0].get("value", ""))))
        except (ValueError, AttributeError, TypeError, KeyError) as e:
            raise StepFailed(f"{name}:{number}: not a line of a `custom` dataset ({e})") from e
    texts = [t for t in texts if t.strip()]
    if not texts:
        raise StepFailed(f"{name} holds no prompt")
    return Prompts(path, texts)


@dataclass(frozen=True)
class Sample:
    """Greedy outputs at batch 1 with the cache flushed before; counters as in `Generation`."""

    outputs: list[list[int]]
    completion: list[int]
    verify_steps: list[int | None]
    speculative: str  # the algorithm that the server says it runs; "" for none
    faults: list[str] = field(default_factory=list)

    def steps_per_token(self) -> float | None:
        return verdict.steps_per_token(self.verify_steps, self.completion, bool(self.speculative))

    def accept_length(self) -> float | None:
        """Mean over requests of tokens per verify step; 1.0 without speculation."""
        if not self.speculative:
            return 1.0
        each = [c / s for c, s in zip(self.completion, self.verify_steps, strict=True) if s]
        return sum(each) / len(each) if each else None

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "steps_per_token": self.steps_per_token(),
            "accept_length": self.accept_length(),
        }


def sample(ctx: Context, endpoint: Endpoint, texts: list[str], max_new_tokens: int) -> Sample:
    """Ask each prompt alone, greedily. Raises StepFailed when the server does not answer as it must."""
    try:
        info = serving.call(ctx, lambda: server_info(endpoint))
        _flush(ctx, endpoint)
        made: list[Generation] = []
        for number, text in enumerate(texts, 1):
            one = serving.call(
                ctx,
                lambda t=text: generate(endpoint, t, max_new_tokens, seconds=min(REQUEST_S, ctx.remaining())),  # type: ignore[misc]
            )
            fault = verdict.answer(one.tokens, one.completion_tokens, one.finish, max_new_tokens, exact=True)
            if fault:
                raise StepFailed(f"prompt {number - 1}: {fault}")
            made.append(one)
            ctx.progress(f"greedy output {number} of {len(texts)}", done=number, total=len(texts))
    except HttpError as e:
        raise StepFailed(str(e)) from e
    algorithm = info.get("speculative_algorithm")
    return Sample(
        outputs=[list(g.tokens) for g in made],
        completion=[g.completion_tokens for g in made],
        verify_steps=[g.verify_steps for g in made],
        speculative=str(algorithm) if algorithm and str(algorithm).upper() != "NONE" else "",
    )


def _flush(ctx: Context, endpoint: Endpoint) -> None:
    """Empty the prefix cache. A server with an admin key of its own refuses us: said, no reason to fail."""
    try:
        serving.call(ctx, lambda: flush_cache(endpoint))
    except HttpError as e:
        if e.status not in (401, 403, 404):
            raise
        ctx.progress(f"the server's cache was not flushed: {e}")


@dataclass(frozen=True)
class Bench:
    """How to run the client: `num_prompts` requests a round, `concurrency` at a time, `output_len` tokens."""

    num_prompts: int = 32
    concurrency: int = 4
    output_len: int = 32
    rounds: int = 1

    @classmethod
    def from_options(cls, options: dict[str, Any], prompts: Prompts) -> Bench:
        """Not more requests than the file has prompts: the client would silently run fewer."""
        made = cls(**{k: int(v) for k, v in options.items() if k in cls.__dataclass_fields__})
        return cls(min(made.num_prompts, len(prompts.texts)), made.concurrency, made.output_len, made.rounds)


def client(
    ctx: Context, control: ServiceControl, prompts: Prompts, bench: Bench, name: str
) -> dict[str, Any]:
    """All rounds in one process of the venv's Python (importing the client takes longer than a round).

    Returns {"bench", "rounds": [the client's own results, without texts], "figures"}. Raises StepFailed.
    """
    folder = staging.root(ctx) / "bench" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o755)
    script, output = folder / "bench_client.py", folder / "rounds.jsonl"
    script.write_bytes((resources.files(__package__) / "scripts" / "bench_client.py").read_bytes())
    request = folder / "request.json"
    request.write_text(
        json.dumps(
            {
                **asdict(bench),
                "url": control.endpoint.url,
                "dataset": str(prompts.path),
                "output": str(output),
            }
        )
    )
    user = staging.run_as(ctx)
    if user:
        shutil.chown(folder, user)
    env = {**control.environment(), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    if control.endpoint.api_key:
        env["OPENAI_API_KEY"] = control.endpoint.api_key  # where the client looks for it
    ctx.progress("loading SGLang's benchmark client")
    finished = ctx.process(
        [ctx.plan.python, str(script), str(request)],
        env=env,
        cwd=folder,
        log_name=f"bench-{name}",
        user=user,
        on_line=_Follow(ctx, bench).line,
    )
    if finished.rc:
        raise StepFailed(
            f"the benchmark client ended with status {finished.rc}: {_last_line(finished.output)}"
        )
    try:
        rounds = [json.loads(line) for line in output.read_text().splitlines()]
    except (OSError, ValueError) as e:
        raise StepFailed(f"the benchmark client left no readable result: {e}") from e
    return {"bench": asdict(bench), "rounds": [_slim(r) for r in rounds], "figures": figures(rounds)}


class _Follow:
    """The client's output as progress."""

    def __init__(self, ctx: Context, bench: Bench) -> None:
        self.ctx, self.bench, self.round = ctx, bench, 1

    def line(self, line: str) -> None:
        begun = _ROUND.match(line)
        if begun:
            self.round = int(begun[1])
        match = _REQUESTS_DONE.search(line)
        if begun or match:
            done = int(match[1]) if match else 0
            rounds, each = self.bench.rounds, self.bench.num_prompts
            text = f"benchmark round {self.round} of {rounds}: {done} of {each} requests"
            self.ctx.progress(text, done=(self.round - 1) * each + done, total=rounds * each)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


_KEEP = (
    "completed", "duration", "output_throughput", "request_throughput", "total_output_tokens",
    "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_itl_ms",
    "median_e2e_latency_ms", "output_lens", "errors",
)  # fmt: skip


def _slim(result: dict[str, Any]) -> dict[str, Any]:
    """What the gates and the report need: the texts and the server's own description stay in the file."""
    kept = {k: result[k] for k in _KEEP if k in result}
    kept["errors"] = [e for e in kept.get("errors", []) if e][:5]
    return kept


def figures(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds: output tokens/s, TTFT and TPOT in ms."""
    names = {
        "output_tokens_per_s": "output_throughput",
        "ttft_ms": "median_ttft_ms",
        "tpot_ms": "median_tpot_ms",
    }
    return {
        ours: round(verdict.median([float(r[theirs]) for r in rounds if r.get(theirs) is not None]), 3)
        for ours, theirs in names.items()
    }


def shown(figures: dict[str, float]) -> str:
    """One line for people."""
    return (
        f"{figures['output_tokens_per_s']:.1f} tok/s, TTFT {figures['ttft_ms']:.1f} ms, "
        f"TPOT {figures['tpot_ms']:.2f} ms"
    )
