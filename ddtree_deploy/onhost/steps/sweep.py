"""The service restarted with each budget in turn, and as the chain, pass after pass; rounds after each.

Only launch arguments change. What was measured is kept on the host after every restart, so that a sweep that
was ended goes on where it was. Undo: the service as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from typing import Any

from ..context import Context, StepFailed
from ..judge import sweep_table
from ..judge.sweep_table import CHAIN
from ..measure import bench_rounds, calibration, greedy, identity, reference, restarts
from ..measure.bench_rounds import Bench
from ..measure.greedy import Prompts
from ..measure.restarts import check_undone, undo
from ..service import release, serving
from ..service.base import ServiceControl
from ..state import durable, layout
from ..wire.protocol import Launch

__all__ = ["check_undone", "do", "undo"]

FILE = "sweep.json"
FLAG = "speculative-ddtree-budget"
SCHEDULE = "speculative-ddtree-budget-schedule"


def do(ctx: Context) -> str:
    running = restarts.begin(ctx)
    budgets = [CHAIN, *(int(b) for b in ctx.option("budgets", []))]
    passes = int(ctx.option("passes", 2))
    prompts = greedy.load_prompts(ctx, str(ctx.option("prompts", reference.PROMPTS)))
    bench = _bench(ctx, prompts)
    here, _ = identity.of_server(ctx, running.endpoint)
    store = Store(ctx, _key(ctx, here, bench))
    arms = [(p, b) for p in range(1, passes + 1) for b in budgets]  # pass by pass: drift hits every arm
    for number, (turn, budget) in enumerate(arms, 1):
        name = f"arm {number} of {len(arms)} (pass {turn}, {shown(budget)})"
        if store.has(turn, budget):
            ctx.progress(f"{name}: measured by an earlier run", done=number, total=len(arms))
            continue
        ctx.progress(name, done=number - 1, total=len(arms))
        store.add(_block(ctx, turn, budget, prompts, bench, store.repeats))
    known = calibration.load(ctx.state_dir, here, None).spread
    wanted = [b for b in store.blocks if b["budget"] in budgets and b["pass"] <= passes]
    result = sweep_table.table(wanted, known)
    intents = [{"record": str(ctx.backup_dir), **_was(ctx)}]
    applied = ""
    if ctx.option("apply", False):
        chosen = next(r["budget"] for r in result["best"] if r["concurrency"] == bench.concurrency)
        launch = launch_of(ctx, chosen)
        release.relaunched(ctx, restarts.restart(ctx, launch), launch)
        applied = f"; the service runs {shown(chosen)} now"
    else:
        restarts.restore(ctx, intents)
    ctx.result(**result, bench=dataclasses.asdict(bench), identity=here, applied=applied, blocks=wanted)
    store.finished()
    return f"{'; '.join(in_words(r) for r in result['best'])}; --{SCHEDULE} {result['schedule']}{applied}"


def _was(ctx: Context) -> dict[str, Any]:
    before = serving.record_of(ctx)
    assert before is not None  # `restarts.begin` wants one
    return {"was_active": before.active, "generated": before.generated}


def _bench(ctx: Context, prompts: Prompts) -> Bench:
    """The rounds at the first concurrency are the client's own; those at the others come as its `also`."""
    concurrencies = [int(c) for c in ctx.option("concurrency", [4])]
    options = dict(ctx.option("bench", {}) or {})
    rounds = int(ctx.option("rounds", options.get("rounds", 4)))
    also = [c for c in concurrencies[1:] for _ in range(rounds)]
    return Bench.from_options(
        {**options, "rounds": rounds, "concurrency": concurrencies[0], "also": also}, prompts
    )


def launch_of(ctx: Context, budget: int) -> Launch:
    """hosts.yaml's launch with this budget; for the chain DFLASH without any flag of DDTREE."""
    own = serving.service_of(ctx).launch
    tree = {flag for flag in own.set if flag.startswith("speculative-ddtree-")} | {FLAG, SCHEDULE}
    kept = {flag: value for flag, value in own.set.items() if flag not in tree}
    if budget == CHAIN:
        kept["speculative-algorithm"] = "DFLASH"
        return dataclasses.replace(own, set=kept, unset=sorted({*own.unset, *tree}))
    more = {flag: value for flag, value in own.set.items() if flag not in (FLAG, SCHEDULE)}
    more |= {"speculative-algorithm": "DDTREE", FLAG: str(budget)}
    return dataclasses.replace(own, set=more, unset=[f for f in own.unset if f not in more])


def _block(  # noqa: PLR0917
    ctx: Context, turn: int, budget: int, prompts: Prompts, bench: Bench, repeats: int
) -> dict[str, Any]:
    running = restarts.restart(ctx, launch_of(ctx, budget))
    _check(ctx, running, budget)
    asked = reference.first(prompts, int(ctx.option("tokens", 8)))
    sample = greedy.sample(ctx, running.endpoint, asked, int(ctx.option("max_new_tokens", 32)))
    result = restarts.rounds(ctx, running, prompts, bench, f"pass-{turn}-budget-{budget}", repeats)
    lost = [r for r in result["also"] if r["completed"] != bench.num_prompts * result["repeats"]]
    if lost:
        raise StepFailed(f"{shown(budget)}, concurrency {lost[0]['concurrency']}: requests were lost")
    by: dict[str, dict[str, Any]] = {
        str(bench.concurrency): {
            "rounds": [r.throughput for r in bench_rounds.judged_rounds(result) if not r.warmup],
            **{k: result["figures"][k] for k in ("ttft_ms", "tpot_ms")},
        }
    }
    for row in result["also"]:
        own = by.setdefault(str(row["concurrency"]), {"rounds": [], "ttft_ms": 0.0, "tpot_ms": 0.0})
        own["rounds"].append(row["output_tokens_per_s"])
        own.update({k: row[k] for k in ("ttft_ms", "tpot_ms")})
    ctx.progress(f"{shown(budget)}: {bench_rounds.shown(result['figures'])}")
    return {
        "pass": turn,
        "budget": budget,
        "repeats": result["repeats"],
        "steps_per_token": sample.steps_per_token(),
        "accept_length": sample.accept_length(),
        "loop": statistics.median(result["loop"]) if result["loop"] else None,
        "by_concurrency": by,
    }


def _check(ctx: Context, running: ServiceControl, budget: int) -> None:
    """The server runs what this arm is about: a plugin that is not loaded would give the chain again."""
    _, info = identity.of_server(ctx, running.endpoint)
    found, wanted = identity.algorithm(info), "DFLASH" if budget == CHAIN else "DDTREE"
    if found.upper() != wanted:
        raise StepFailed(f"{shown(budget)}: the server says that it runs {found or 'no speculation'}")


def _key(ctx: Context, here: dict[str, str], bench: Bench) -> str:
    """What may be added to an earlier sweep of this host: same server, launch, release and rounds."""
    own = serving.service_of(ctx).launch
    text = json.dumps([here, dataclasses.asdict(own), dataclasses.asdict(bench), ctx.plan.release])
    return hashlib.sha256(text.encode()).hexdigest()


class Store:
    """The blocks measured so far, on the host's disk."""

    def __init__(self, ctx: Context, key: str) -> None:
        self.path = ctx.state_dir / FILE
        data = layout.read_json(self.path)
        fits = isinstance(data, dict) and data.get("key") == key and not ctx.option("fresh", False)
        self.key = key
        self.blocks: list[dict[str, Any]] = list(data["blocks"]) if fits and isinstance(data, dict) else []

    @property
    def repeats(self) -> int:
        """How often a round runs the prompts: as in the first block, so that all rounds are alike."""
        return int(self.blocks[0]["repeats"]) if self.blocks else 0

    def has(self, turn: int, budget: int) -> bool:
        return any(b["pass"] == turn and b["budget"] == budget for b in self.blocks)

    def add(self, block: dict[str, Any]) -> None:
        self.blocks.append(block)
        durable.write_json(self.path, {"key": self.key, "blocks": self.blocks})

    def finished(self) -> None:
        """The next sweep begins anew."""
        self.path.unlink(missing_ok=True)


def shown(budget: int) -> str:
    """An arm for people."""
    return "the chain" if budget == CHAIN else f"budget {budget}"


def in_words(row: dict[str, Any]) -> str:
    """The best of one concurrency, in a line."""
    head = f"concurrency {row['concurrency']}: {shown(row['budget'])}"
    if row["interval"] is None:
        return f"{head}, no budget is faster for sure"
    low, high = row["interval"]
    also = f", not told from {', '.join(map(str, row['equals']))}" if row["equals"] else ""
    return f"{head}, {row['ratio']:.3f} [{low:.3f}, {high:.3f}] times the chain{also}"
