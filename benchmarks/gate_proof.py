"""`make gate-proof`: do the gates tell a slow server, and the chain from the tree, every time? Real SGLang.

A trial is what a rollout's gates see, with the very code that runs on the hosts: a baseline of server A with
DDTREE, then another start of the same, B. B must not fail `benchmark` (asked in every fifth trial), and must
once its steps take twice as long. And verify steps: DDTREE after the chain must pass `acceptance`, the chain
after DDTREE must fail it.

    python -m benchmarks.gate_proof [--trials 10] [--only speed|steps]

Needs the sandbox's venv and models (`ddtree-deploy sandbox up`). Prints a line a trial, then the counts.
Exit status 1 unless all trials of all four went as they must, the undecided ones of a sound B aside.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ddtree_deploy.onhost.context import Context, StepFailed
from ddtree_deploy.onhost.wire.protocol import StepSpec
from tests.onhost.serving_support import Lab, do
from tests.sandbox.breakable import PROJECT, Breakable, missing

SLOW = 2.0
SOUND_EVERY = 5  # trials
# min_ratio and rounds of playbooks/rollout.yaml: with five instead of eight, one slow calibration loop on a
# shared machine makes the loop's exact interval wide enough to take a true failure back. The rest is that of
# playbooks/sandbox.yaml.
BENCH = {"num_prompts": 8, "concurrency": 4, "output_len": 16, "rounds": 8, "min_round_s": 2.0, "also": []}
GATE = {"min_ratio": 0.9, "assume_restart_sd": 0.05, "host_change": 1.0}
TOKENS = {"tokens": 8, "max_new_tokens": 32}


def specs(bench: dict[str, Any] | None) -> list[StepSpec]:
    return [
        StepSpec("baseline", "baseline", 1800.0, {**TOKENS, "bench": bench}),
        StepSpec("acceptance", "acceptance", 1800.0, {"max_steps_ratio": 1.0}),
        StepSpec("benchmark", "benchmark", 1800.0, GATE),
    ]


class Proof:
    """Three servers: A and B with DDTREE, and the chain C."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder, 0)
        self.a, self.b, self.c = (self._server(folder / name) for name in ("a", "b", "c"))

    def _server(self, folder: Path) -> Breakable:
        folder.mkdir()
        return Breakable(folder)

    def start(self, parts: list[str]) -> None:
        servers = [(self.b, "DDTREE")]
        servers += [(self.a, "DDTREE")] if "speed" in parts else []
        servers += [(self.c, "DFLASH")] if "steps" in parts else []
        with ThreadPoolExecutor(3) as pool:
            for started in [pool.submit(server.serve, algorithm) for server, algorithm in servers]:
                started.result()

    def before(self, server: Breakable, bench: dict[str, Any] | None) -> Context:
        """A run that has come as far as its baseline of `server`."""
        ctx = self._context(server, bench)
        do(ctx, "baseline")
        return ctx

    def judged(self, ctx: Context, server: Breakable, gate: str) -> tuple[str, str]:
        """What a gate of that run says to another server: (verdict, reason)."""
        new = self._context(server, ctx.step.options.get("bench"))
        new.results = dict(ctx.results)
        try:
            return "pass", do(new, gate)
        except StepFailed as failed:
            return failed.verdict, failed.reason

    def _context(self, server: Breakable, bench: dict[str, Any] | None) -> Context:
        service = self.lab.service("adopted", endpoint=f"http://127.0.0.1:{server.port}")
        # The gate is asked what it says, also where a rollout would have ended before the stop.
        ctx = self.lab.context(
            service,
            *specs(bench),
            python=str(server.layout.venv / "bin" / "python3"),
            on_inconclusive="hold",
        )
        folder = ctx.stage_dir / "payload" / "attachments"
        folder.mkdir(parents=True)
        shutil.copy(PROJECT / "playbooks" / "prompts.jsonl", folder)
        return ctx

    def trial(self, number: int, parts: list[str]) -> dict[str, tuple[str, str]]:
        """Verdicts and reasons of the four."""
        found = {}
        if "speed" in parts:
            run = self.before(self.a, BENCH)
            if number % SOUND_EVERY == 1:
                found["sound"] = self.judged(run, self.b, "benchmark")
            self.b.behave(slow=SLOW)
            found["slowed"] = self.judged(run, self.b, "benchmark")
            self.b.behave()
        if "steps" in parts:
            found["tree after chain"] = self.judged(self.before(self.c, None), self.b, "acceptance")
            found["chain after tree"] = self.judged(self.before(self.b, None), self.c, "acceptance")
        return found

    def close(self) -> None:
        for server in (self.a, self.b, self.c):
            server.stop()


PARTS = ("speed", "steps")
MUST = {
    "sound": ("pass", "inconclusive"),
    "slowed": ("fail",),
    "tree after chain": ("pass",),
    "chain after tree": ("fail",),
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--trials", type=int, default=10)
    options.add_argument("--only", choices=PARTS, help="one half of each trial")
    given = options.parse_args()
    trials, parts = given.trials, [given.only] if given.only else list(PARTS)
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    seen: dict[str, list[str]] = {what: [] for what in MUST}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddtree-gate-proof-") as folder:
        proof = Proof(Path(folder))
        try:
            proof.start(parts)
            for number in range(1, trials + 1):
                for what, (verdict, reason) in proof.trial(number, parts).items():
                    seen[what].append(verdict)
                    print(f"{number:2}  {what:16}  {verdict:12}  {reason[:150]}", flush=True)
        finally:
            proof.close()
    print(f"\n{trials} trials in {time.monotonic() - began:.0f} s")
    for what, verdicts in ((what, verdicts) for what, verdicts in seen.items() if verdicts):
        counts = ", ".join(f"{v} {verdicts.count(v)}" for v in ("pass", "inconclusive", "fail"))
        print(f"{what:16}  {counts}  (must be: {' or '.join(MUST[what])})")
    good = all(v in MUST[what] for what, verdicts in seen.items() for v in verdicts)
    print("PASS" if good else "FAIL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
