"""How much do restarts of the unchanged service differ? So many restarts, rounds after each, the spread kept.

Undo: the service as it was, which is what it is all the time.
"""

from __future__ import annotations

import math

from ..context import Context
from ..judge import stats
from ..judge.stats import MIN_RESTARTS
from ..measure import bench_rounds, calibration, greedy, identity, reference, restarts
from ..measure.restarts import check_undone, undo
from ..state import layout

__all__ = ["check_undone", "do", "undo"]


def do(ctx: Context) -> str:
    running = restarts.begin(ctx)
    count = int(ctx.option("restarts", MIN_RESTARTS))
    prompts = greedy.load_prompts(ctx, str(ctx.option("prompts", reference.PROMPTS)))
    bench = bench_rounds.Bench.from_options(ctx.option("bench", {}) or {}, prompts)
    here, _ = identity.of_server(ctx, running.endpoint)
    blocks: list[list[float]] = []
    kept = []
    repeats = 0
    for number in range(1, count + 1):
        ctx.progress(f"restart {number} of {count}", done=number - 1, total=count)
        running = restarts.restart(ctx)
        result = restarts.rounds(ctx, running, prompts, bench, f"restart-{number}", repeats)
        repeats = result["repeats"]
        blocks.append([r.throughput for r in bench_rounds.judged_rounds(result) if not r.warmup])
        kept.append({"figures": result["figures"], "rounds": blocks[-1], "loop": result["loop"]})
        ctx.progress(
            f"restart {number} of {count}: {bench_rounds.shown(result['figures'])}", done=number, total=count
        )
    spread = stats.restart_spread(blocks)
    recorded = layout.time_text()
    more = {"recorded": recorded, "run": ctx.plan.run, "bench": result["bench"], "blocks": blocks}
    calibration.save(ctx.state_dir, here, spread, more)
    within = math.sqrt(sum(stats.summary(b)["spread"] ** 2 for b in blocks) / len(blocks))
    said = _resolvable(blocks, spread)
    ctx.result(sd=spread.sd, restarts=count, within=within, blocks=kept, identity=here, said=said)
    return (
        f"restarts spread by {spread.sd:.1%} ({count} restarts, rounds within one by {within:.1%}); "
        f"kept for this host; {said}"
    )


def _resolvable(blocks: list[list[float]], spread: stats.RestartSpread) -> str:
    """What that means for a release of the same speed: the smallest ratio, and whether 0.95 is one."""
    try:
        found = stats.resolution(max(blocks, key=lambda b: stats.summary(b)["spread"]), 0.95, spread)
    except stats.TooFewRounds:
        return f"{len(blocks[0])} rounds a restart are too few to say what can be resolved"
    return found.text
