"""SGLang's own benchmark client, run on the host: rounds, with the host's own speed measured between them."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import asdict, dataclass
from importlib import resources
from statistics import median
from typing import Any

from ..context import Context, StepFailed
from ..judge.speed import Round
from ..programs.process import run_process
from ..service import serving
from ..service.base import ServiceControl
from ..staging import stage
from ..wire.masking import last_line
from .greedy import Prompts

_ROUND = re.compile(r"^DDTREE-BENCH round (\d+) of (\d+)")
_REQUESTS_DONE = re.compile(r"(\d+)/(\d+) \[")  # the client's progress bar


@dataclass(frozen=True)
class Bench:
    """How to run the client: `num_prompts` a round, `concurrency` at a time, `output_len` tokens each.

    rounds: those that count; a warm-up round comes before them. min_round_s: a shorter round is repeated
    until it lasts so long. also: concurrencies of which one round each is reported, never judged.
    """

    num_prompts: int = 32
    concurrency: int = 4
    output_len: int = 32
    rounds: int = 8
    min_round_s: float = 5.0
    also: tuple[int, ...] = ()

    @classmethod
    def from_options(cls, options: dict[str, Any], prompts: Prompts) -> Bench:
        """Not more requests than the file has prompts: the client would silently run fewer."""
        given = {k: v for k, v in options.items() if k in cls.__dataclass_fields__}
        given["num_prompts"] = min(int(given.get("num_prompts", cls.num_prompts)), len(prompts.texts))
        return cls(**{**given, "also": tuple(int(c) for c in given.get("also") or ())})


def client(  # noqa: PLR0917
    ctx: Context,
    control: ServiceControl,
    prompts: Prompts,
    bench: Bench,
    name: str,
    repeats: int = 0,
    *,
    calibrated: bool = True,
) -> dict[str, Any]:
    """All rounds in one process of the venv's Python (importing the client takes longer than a round).

    repeats: how often a round runs the prompts; 0: as often as `min_round_s` wants, found by the warm-up.
    calibrated: the calibration loop runs before each round that counts; speed that nobody judges needs none.
    Returns {"bench", "repeats", "rounds", "loop", "figures", "also"}: the rounds of the operating concurrency
    as the client gave them, without texts (the warm-up has `warmup`); `loop` in seconds, one a round or none;
    `figures` are medians over the rounds that count; `also` the figures of the other concurrencies. Raises
    StepFailed.
    """
    folder = stage.root(ctx) / "bench" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o755)
    script, output = folder / "bench_client.py", folder / "rounds.jsonl"
    script.write_bytes((resources.files(__package__) / "bench_client.py").read_bytes())
    request = folder / "request.json"
    asked = {
        **asdict(bench),
        "repeats": repeats,
        "calibrated": calibrated,
        "url": control.endpoint.url,
        "dataset": str(prompts.path),
        "output": str(output),
    }
    request.write_text(json.dumps(asked))
    user = stage.run_as(ctx)
    if user:
        shutil.chown(folder, user)
    env = {**control.environment(), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    if control.endpoint.api_key:
        env["OPENAI_API_KEY"] = control.endpoint.api_key  # where the client looks for it
    ctx.progress("loading SGLang's benchmark client")
    follow = _Follow(ctx, bench)
    finished = run_process(
        ctx,
        [ctx.plan.python, str(script), str(request)],
        env=env,
        cwd=folder,
        log_name=f"bench-{name}",
        user=user,
        on_line=follow.line,
        look=follow.look,
    )
    if finished.rc:
        raise StepFailed(
            f"the benchmark client ended with status {finished.rc}: {last_line(finished.output)}"
        )
    ctx.answered = time.time()
    try:
        rounds = [_slim(json.loads(line)) for line in output.read_text().splitlines()]
    except (OSError, ValueError) as e:
        raise StepFailed(f"the benchmark client left no readable result: {e}") from e
    own = [r for r in rounds if not r["also"]]
    return {
        "bench": asdict(bench),
        "repeats": own[-1]["repeats"] if own else 0,
        "rounds": own,
        "loop": [r["loop_s"] for r in own if r["loop_s"] is not None],
        "figures": figures([r for r in own if not r["warmup"]]),
        "also": [
            {"concurrency": r["also"], "completed": r.get("completed"), **figures([r])}
            for r in rounds
            if r["also"]
        ],
    }


def judged_rounds(result: dict[str, Any]) -> list[Round]:
    """The rounds of `client` as the speed gate takes them."""
    n, length = int(result["bench"]["num_prompts"]), int(result["bench"]["output_len"])
    return [
        Round.of_client(raw, n * int(raw["repeats"]), length, warmup=raw["warmup"])
        for raw in result["rounds"]
    ]


class _Follow:
    """The client's output as progress, with the time to go once a round that counts is over.

    And whether the server hangs: within a round the client says so whenever a request has ended.
    """

    def __init__(self, ctx: Context, bench: Bench) -> None:
        self.ctx, self.bench, self.base, self.total = ctx, bench, 0, 0
        self._begun: list[float] = []  # time.monotonic() at which each round began
        self._hang_s = serving.hang_s(ctx, bench.output_len)
        self._heard, self._done = 0.0, -1

    def look(self) -> None:
        """Raises StepFailed when no request has ended for too long."""
        if self._begun and time.monotonic() - self._heard > self._hang_s:
            done = f"{max(0, self._done)} of {self.bench.num_prompts} requests"
            raise StepFailed(
                f"it hangs: in benchmark round {self.base + 1} of {self.total} no request has ended for "
                f"{self._hang_s:.0f} s, after {done}"
            )

    def line(self, line: str) -> None:
        begun = _ROUND.match(line)
        found = _REQUESTS_DONE.search(line)
        if begun or not found or int(found[1]) != self._done:  # a bar that is drawn again says nothing
            self._heard, self._done = time.monotonic(), int(found[1]) if found else -1
        if begun:
            self.base, self.total = int(begun[1]) - 1, int(begun[2])
            self._begun.append(time.monotonic())
        if (begun or found) and self.total:
            done = int(found[1]) if found else 0
            each = self.bench.num_prompts
            text = f"benchmark round {self.base + 1} of {self.total}: {done} of {each} requests"
            left = self.left()
            more = {} if left is None else {"eta": round(left, 1)}
            told = "" if left is None else f", about {left:.0f} s to go"
            self.ctx.progress(text + told, done=self.base * each + done, total=self.total * each, **more)

    def left(self) -> float | None:
        """Seconds until the last round is over, by the mean of those so far; the warm-up may be shorter."""
        if len(self._begun) < 3:
            return None
        mean = (self._begun[-1] - self._begun[1]) / (len(self._begun) - 2)
        in_this = time.monotonic() - self._begun[-1]
        return max(0.0, (self.total - self.base) * mean - in_this)


_KEEP = (
    "also", "warmup", "repeats", "loop_s", "completed", "duration", "output_throughput", "request_throughput",
    "total_output_tokens", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_itl_ms",
    "p99_itl_ms", "median_e2e_latency_ms", "output_lens", "ttfts", "latencies", "errors",
)  # fmt: skip


def _slim(result: dict[str, Any]) -> dict[str, Any]:
    """What the gates and the report need: the texts and the server's own description stay in the file."""
    kept = {k: result[k] for k in _KEEP if k in result}
    kept["errors"] = [e for e in kept.get("errors", []) if e][:5]
    return kept


def figures(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds: output tokens/s; TTFT, TPOT and ITL in ms, where the client gives them."""
    names = {
        "output_tokens_per_s": "output_throughput",
        "ttft_ms": "median_ttft_ms",
        "tpot_ms": "median_tpot_ms",
        "itl_ms": "median_itl_ms",
    }
    values = {
        ours: [float(r[theirs]) for r in rounds if r.get(theirs) is not None]
        for ours, theirs in names.items()
    }
    return {ours: round(median(v), 3) if v else 0.0 for ours, v in values.items() if v or ours != "itl_ms"}


def shown(figures: dict[str, float]) -> str:
    """One line for people."""
    return (
        f"{figures['output_tokens_per_s']:.1f} tok/s, TTFT {figures['ttft_ms']:.1f} ms, "
        f"TPOT {figures['tpot_ms']:.2f} ms"
    )
