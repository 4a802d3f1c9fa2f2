"""Greedy outputs of a server, one prompt at a time, the cache flushed; log-probs where it gives them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..context import Context, StepFailed
from ..judge import verdict
from ..judge.agreement import Continuation
from ..service import serving
from ..service.sglang_api import Endpoint, Generation, HttpError, flush_cache, generate, server_info
from ..staging import stage
from . import identity

TOP = 2  # a divergence is judged by the gap between the best two tokens
CONCURRENCY = 8


@dataclass(frozen=True)
class Prompts:
    """Prompts of the shipped file, in its order; `names` for people."""

    path: Path
    texts: list[str]
    names: list[str]


def load_prompts(ctx: Context, name: str) -> Prompts:
    """JSON lines in the format of SGLang's `custom` dataset: {"conversations": [{"content"}, {"content"}]}.

    Rows that its client would leave out are left out here, too. Raises StepFailed with the line number.
    """
    path = stage.payload_file(ctx, name)
    texts: list[str] = []
    names: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            turns = row.get("conversations", row.get("conversation", []))
            text = str(turns[0].get("content", turns[0].get("value", ""))) if len(turns) >= 2 else ""
            label = str(row.get("id", ""))
        except (ValueError, AttributeError, TypeError, KeyError) as e:
            raise StepFailed(f"{name}:{number}: not a line of a `custom` dataset ({e})") from e
        if text.strip():
            names.append(f"{len(texts)} ({label})" if label else str(len(texts)))
            texts.append(text)
    if not texts:
        raise StepFailed(f"{name} holds no prompt")
    return Prompts(path, texts, names)


@dataclass(frozen=True)
class Sample:
    """Greedy outputs at batch 1; lists by prompt. Log-probs are natural; empty where they were not given.

    prompts: names. top2: per position the best two (token, log-prob). refused: why there are no log-probs.
    """

    prompts: list[str]
    outputs: list[list[int]]
    completion: list[int]
    verify_steps: list[int | None]
    speculative: str  # the algorithm that the server says it runs; "" for none
    logprobs: list[list[float]] = field(default_factory=list)
    top2: list[list[list[tuple[int, float]]]] = field(default_factory=list)
    refused: str = ""

    def continuations(self) -> list[Continuation]:
        """The answers as they are compared."""
        return continuations(asdict(self))

    def _verify_steps(self) -> int | None:
        """Of all requests; None where the server gives none. Without speculation a step is a token."""
        if not self.speculative:
            return sum(self.completion)
        known = [s for s in self.verify_steps if s is not None]
        return sum(known) if len(known) == len(self.verify_steps) else None

    def steps_per_token(self) -> float | None:
        """Verify steps per generated token over the set; 1.0 without speculation, None when unknown."""
        tokens, steps = sum(self.completion), self._verify_steps()
        return steps / tokens if steps and tokens else None

    def accept_length(self) -> float | None:
        """Tokens per verify step over the set (a ratio of sums); 1.0 without speculation, None: unknown."""
        tokens, steps = sum(self.completion), self._verify_steps()
        return tokens / steps if steps and tokens else None

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "steps_per_token": self.steps_per_token(),
            "accept_length": self.accept_length(),
        }


def continuations(sample: dict[str, Any]) -> list[Continuation]:
    """The answers of a sample as it was journalled, or stored in a golden file."""
    outputs = sample["outputs"]
    names = sample.get("prompts") or [str(i) for i in range(len(outputs))]
    logprobs = sample.get("logprobs") or [[]] * len(outputs)
    top2 = sample.get("top2") or [[]] * len(outputs)
    return [
        Continuation(str(n), list(t), list(lp), [[(int(a), float(b)) for a, b in at] for at in top])
        for n, t, lp, top in zip(names, outputs, logprobs, top2, strict=True)
    ]


def sample(
    ctx: Context,
    endpoint: Endpoint,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    logprobs: bool = False,
    together: bool = False,
    to_length: bool = True,
) -> Sample:
    """Ask all prompts greedily. Raises StepFailed when the server does not answer as it must.

    logprobs: keep them; a server that refuses is asked without, and why is in `refused`. together: several
    requests at a time, so that other batch shapes are met; not for counters. to_length: exactly
    `max_new_tokens` from each; else each answer ends where the model ends it.
    """
    texts = prompts.texts
    try:
        info = serving.call(ctx, lambda: server_info(endpoint))
        refused = _refusal(ctx, endpoint, texts[0]) if logprobs else ""
        flush(ctx, endpoint)
        ask = _Ask(ctx, endpoint, max_new_tokens, TOP if logprobs and not refused else 0, to_length)
        made = ask.together(texts) if together else ask.one_by_one(texts)
    except HttpError as e:
        raise StepFailed(f"it hangs: {e}" if e.kind == "timeout" else str(e)) from e
    kept = bool(made) and all(len(g.logprobs) == len(g.tokens) == len(g.top) for g in made)
    return Sample(
        prompts=prompts.names,
        outputs=[list(g.tokens) for g in made],
        completion=[g.completion_tokens for g in made],
        verify_steps=[g.verify_steps for g in made],
        speculative=identity.algorithm(info),
        logprobs=[[round(v, 6) for v in g.logprobs] for g in made] if kept else [],
        top2=[[[(t, round(v, 6)) for t, v in at] for at in g.top] for g in made] if kept else [],
        refused=refused or ("" if kept or not logprobs else "its answers carry no log-probs"),
    )


def _refusal(ctx: Context, endpoint: Endpoint, text: str) -> str:
    """Why the server gives no log-probs; empty when it does. SGLang answers 400, or with finish `abort`."""
    seconds = serving.hang_s(ctx, 2)
    try:
        made = serving.call(ctx, lambda: generate(endpoint, text, 2, seconds=seconds, top_logprobs=TOP))
    except HttpError as e:
        if e.status != 400:
            raise
        return str(e)[:300]
    return "it aborts a request with return_logprob" if made.finish == "abort" else ""


@dataclass(frozen=True)
class _Ask:
    ctx: Context
    endpoint: Endpoint
    max_new_tokens: int
    top_logprobs: int
    to_length: bool

    def one(self, text: str) -> Generation:
        seconds = min(serving.hang_s(self.ctx, self.max_new_tokens), self.ctx.remaining())
        return generate(
            self.endpoint,
            text,
            self.max_new_tokens,
            seconds=seconds,
            ignore_eos=self.to_length,
            top_logprobs=self.top_logprobs,
        )

    def one_by_one(self, texts: list[str]) -> list[Generation]:
        made = []
        for number, text in enumerate(texts, 1):
            made.append(serving.call(self.ctx, lambda t=text: self.one(t)))  # type: ignore[misc]
            self.check(number - 1, made[-1])
            self.ctx.progress(f"greedy output {number} of {len(texts)}", done=number, total=len(texts))
        return made

    def together(self, texts: list[str]) -> list[Generation]:
        def all_of_them() -> list[Generation]:
            with ThreadPoolExecutor(CONCURRENCY) as pool:
                return list(pool.map(self.one, texts))

        made = serving.call(self.ctx, all_of_them)
        for index, one in enumerate(made):
            self.check(index, one)
        return made

    def check(self, index: int, made: Generation) -> None:
        asked = self.max_new_tokens
        fault = verdict.answer(made.tokens, made.completion_tokens, made.finish, asked, exact=self.to_length)
        if fault:
            raise StepFailed(f"prompt {index}: {fault}")


def flush(ctx: Context, endpoint: Endpoint) -> None:
    """Empty the prefix cache. A server with an admin key of its own refuses us: said, no reason to fail."""
    try:
        serving.call(ctx, lambda: flush_cache(endpoint))
    except HttpError as e:
        if e.status not in (401, 403, 404):
            raise
        ctx.progress(f"the server's cache was not flushed: {e}")
