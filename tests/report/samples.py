"""Made-up run records for the tests of the report: invented figures in the real files' shapes. Not
measured."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from ddtree_deploy.onhost.judge.agreement import Continuation, judge_acceptance, judge_tokens
from ddtree_deploy.onhost.judge.speed import Measurements, Round, judge
from ddtree_deploy.onhost.judge.stats import RestartSpread
from ddtree_deploy.onhost.judge.verdict import worst_of
from ddtree_deploy.onhost.wire import protocol
from ddtree_deploy.onhost.wire.protocol import Launch, Plan, Service, StepSpec, Target, to_dict

T0 = 1_795_000_000.0
SITE = "/opt/sglang/lib/python3.12/site-packages"
STEPS = (
    ("lock", 0.01, "held"),
    ("preflight", 0.9, "SGLang 0.5.23, variant 0.5.23, 41.2 GB free, 2 GPUs"),
    ("backup", 0.2, "5 paths kept, 1 present, 4 absent"),
    ("stage", 0.1, "5 files, 61.4 kB"),
    ("compile", 0.4, "5 files compiled"),
    ("smoke", 9.2, "smoke passed against the staged files"),
    ("baseline", 71.0, "8 greedy outputs of DFLASH, 0.5391 verify steps per token; 412.3 tok/s"),
    ("stop", 3.1, "drained in 0.4 s; no process left, ports free"),
    ("install", 0.1, "5 files in place, digests agree"),
    ("start", 184.0, "ready after 184 s; a prompt of our own made tokens"),
    ("health", 0.8, "3 of 3 prompts were answered with tokens"),
    ("tokens", 6.4, ""),
    ("acceptance", 0.4, ""),
    ("benchmark", 68.0, ""),
    ("soak", 41.0, "200 of 200 requests, none hung"),
    ("unlock", 0.01, "released"),
)


def plan(run: str, host: str = "gpu1", **changes: Any) -> Plan:
    """A rollout of five files to a host that does not exist."""
    new = ("__init__", "ddtree_utils", "ddtree_info", "ddtree_worker", "plugin")
    fields: dict[str, Any] = {
        "protocol": protocol.PROTOCOL,
        "run": run,
        "action": "rollout",
        "host": host,
        "who": "ada@laptop",
        "created": "2026-11-18T09:46:38+00:00",
        "python": "/opt/sglang/bin/python3",
        "state_dir": "/var/lib/ddtree-deploy",
        "site": SITE,
        "package_dir": f"{SITE}/sglang",
        "payload_name": "sglang-ddtree",
        "payload_version": "0.1.0",
        "variant": "0.5.23",
        "payload_digest": "ab" * 32,
        "release": "cd" * 32,
        "targets": [
            Target(
                path=f"{SITE}/sglang_ddtree/{n}.py",
                ref=f"site:sglang_ddtree/{n}.py",
                source=f"blob:{n}",
                sha256=f"{i:02x}" * 32,
                before="",
            )
            for i, n in enumerate(new, 16)
        ],
        "steps": [StepSpec(name, name, 600.0) for name, _, _ in STEPS],
        "service": Service(
            name="sglang",
            kind="systemd",
            endpoint="http://127.0.0.1:30000",
            unit="sglang.service",
            launch=Launch(),
        ),
        "secrets": {"api_key": "hunter2-never-shown"},
    }
    return Plan(**{**fields, **changes})


def facts(host: str = "gpu1", sglang: str = "0.5.23", gpus: int = 2) -> dict[str, Any]:
    """The host's facts, as far as the evidence looks at them."""
    command = [
        "/opt/sglang/bin/python3", "-m", "sglang.launch_server", "--model-path", "/models/Qwen3-8B",
        "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/models/Qwen3-8B-DFlash-b16",
    ]  # fmt: skip
    new = ["DDTREE" if word == "DFLASH" else word for word in command]
    return {
        "protocol": protocol.PROTOCOL,
        "hostname": host,
        "os": "Debian GNU/Linux 13 (trixie)",
        "kernel": "6.12.48+deb13-amd64",
        "python": "/opt/sglang/bin/python3",
        "python_version": [3, 12, 11],
        "site": SITE,
        "gpus": [{"name": "NVIDIA H200", "memory_total_mib": 143771, "memory_free_mib": 9000}] * gpus,
        "driver": "580.95.05",
        "cuda": "13.0",
        "packages": {
            "sglang": {"version": sglang}, "torch": {"version": "2.13.0"}, "triton": {"version": "3.7.1"},
        },
        "service": {
            "kind": "systemd", "state": "active", "digest": "ef" * 32,
            "command": command, "new_command": [*new, "--speculative-ddtree-budget=32"],
        },
    }  # fmt: skip


class Sample:
    """One invented measurement: rounds around `speed`, acceptance around `accept`."""

    def __init__(self, seed: int, speed: float, accept: float, noise: float, algorithm: str) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.times = [6.0 * 500 / speed * math.exp(rng.gauss(0, noise)) for _ in range(8)]
        self.tokens = 3000
        completion = [64] * 24
        steps = [max(1, round(64 / max(1.0, accept * math.exp(rng.gauss(0, 0.2))))) for _ in completion]
        words = random.Random(5)
        self.outputs = [[words.randrange(1000, 90_000) for _ in range(64)] for _ in completion]
        self.sample: dict[str, Any] = {
            "outputs": self.outputs,
            "completion": completion,
            "verify_steps": steps,
            "speculative": algorithm,
            "faults": [],
            "steps_per_token": sum(steps) / sum(completion),
            "accept_length": sum(completion) / sum(steps),
        }

    def bench(self) -> dict[str, Any]:
        rounds = [
            {
                "completed": 300,
                "duration": t,
                "output_throughput": self.tokens / t,
                "median_ttft_ms": 40 * t / 6,
                "median_tpot_ms": 8 * t / 6,
                "errors": [],
            }
            for t in self.times
        ]
        middle = sorted(self.times)[4]
        return {
            "bench": {"num_prompts": 300, "concurrency": 4, "output_len": 10, "rounds": 8},
            "rounds": rounds,
            "figures": {
                "output_tokens_per_s": self.tokens / middle,
                "ttft_ms": 40 * middle / 6,
                "tpot_ms": 8 * middle / 6,
                "itl_ms": 7.6 * middle / 6,
            },
            "also": [
                {
                    "concurrency": c,
                    "completed": 300,
                    "output_tokens_per_s": self.tokens / middle * factor,
                    "ttft_ms": 40 * middle / 6 * factor,
                    "tpot_ms": 8 * middle / 6 * factor,
                    "itl_ms": 7.6 * middle / 6 * factor,
                }
                for c, factor in ((1, 0.4), (16, 2.2))
            ],
        }

    def judged(self) -> list[Round]:
        return [Round(300, 300, self.tokens, self.tokens, t) for t in self.times]


KINDS = ("good", "slow", "wrong", "noisy", "compile", "lost")


def write_run(runs: Path, kind: str, run: str = "", host: str = "gpu1", **facts_changes: Any) -> Path:
    """Write one run's record. good: passes. slow: fails at benchmark. wrong: fails at tokens. noisy:
    inconclusive. compile: fails before anything was changed. lost: the journal breaks off in mid-start."""
    run = run or f"20261118T0946{38 + KINDS.index(kind):02d}-{KINDS.index(kind):06x}"
    folder = runs / run
    folder.mkdir(parents=True)
    made = to_dict(plan(run, host))
    (folder / "plan.json").write_text(json.dumps({**made, "secrets": {"api_key": "***"}}))
    (folder / "facts.json").write_text(json.dumps(facts(host, **facts_changes)))
    events = _events(kind, run, host)
    (folder / "journal.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    if kind != "lost":
        end = events[-1]
        summary = {
            "host": host, "action": "rollout", "exit_code": end["exit"], "run": run,
            "verdict": end["verdict"], "state": end["state"], "step": end["step"],
            "reason": end["reason"], "next_command": end["next"],
            "seconds": 401.2, "execs": 2, "sent": 96_412, "received": 61_230, "results": {},
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _events(kind: str, run: str, host: str) -> list[dict[str, Any]]:
    noise = 0.09 if kind == "noisy" else 0.01
    before = Sample(1, 500, 1.85, noise, "DFLASH")
    after = Sample(2, {"slow": 246, "noisy": 505}.get(kind, 646), 2.6, noise, "DDTREE")
    events: list[dict[str, Any]] = []
    clock = T0

    def put(e: str, **data: Any) -> None:
        events.append({"n": len(events) + 1, "t": round(clock, 3), "e": e, **data})

    put("run", run=run, action="rollout", host=host, steps=[s[0] for s in STEPS], pid=4711)
    verdict, ended_at, why = "pass", "", "15 steps passed"
    for name, seconds, reason in STEPS:
        put("start", step=name, kind=name)
        result, said, outcome = _result(kind, name, before, after)
        outcome, said = outcome or "pass", said or reason
        if kind == "lost" and name == "start":
            put("progress", step=name, text="loading weights: 41 %|\x1b[31mred\x1b[0m")
            return events
        if name in ("compile", "smoke", "baseline", "benchmark"):
            put(
                "output",
                step=name,
                argv=f"/opt/sglang/bin/python3 -I {name}",
                rc=1 if outcome == "fail" and name == "compile" else 0,
                seconds=seconds,
                tail=_tail(kind, name),
            )
        clock += seconds
        if result is not None:
            put("result", step=name, data=result)
        put("verdict", step=name, verdict=outcome, reason=said, seconds=seconds)
        if outcome != "pass":
            verdict, ended_at, why = outcome, name, said
            break
    state, code = protocol.STATE_NEW, 0
    if verdict != "pass":
        code = 1 if verdict == "fail" else 7
        state = protocol.STATE_BEFORE if ended_at not in ("compile",) else protocol.STATE_UNTOUCHED
        for name in ("start", "install", "stop") if state == protocol.STATE_BEFORE else ():
            put("undo", step=name, phase="start", what="undo")
            clock += 2 if name != "stop" else 171
            put("undo", step=name, phase="done", what="undo", reason="")
    put(
        "end", run=run, verdict=verdict, exit=code, state=state, step=ended_at, reason=why,
        next=f"ddtree-deploy status {host}", **({"down_s": 187.5} if kind == "good" else {}),
    )  # fmt: skip
    return events


def _result(kind: str, name: str, before: Sample, after: Sample) -> tuple[dict[str, Any] | None, str, str]:
    """(result data, reason, verdict) of a step that measures; ("", "") where it says nothing special."""
    if name == "compile" and kind == "compile":
        return None, "ddtree_worker.py:88: invalid syntax <script>alert('x')</script> & more", "fail"
    if name == "baseline":
        return {"max_new_tokens": 64, "sample": before.sample, "bench": before.bench()}, "", ""
    if name == "tokens":
        outputs = [list(t) for t in after.outputs]
        if kind == "wrong":
            outputs[3][17:] = [t + 1 for t in outputs[3][17:]]
        reference, candidate = (
            [
                Continuation(str(i), t, [-0.2] * len(t), [[(x, -0.2), (x + 7, -2.9)] for x in t])
                for i, t in enumerate(side)
            ]
            for side in (before.outputs, outputs)
        )
        told = judge_tokens(reference, candidate, epsilon=1e-4)
        data = {
            "sample": {**after.sample, "outputs": outputs},
            "speculative": "DDTREE",
            "reference": "the old service",
            "agreement": told.figures,
        }
        return data, told.reason, told.verdict
    if name == "acceptance":
        judged = worst_of(
            [
                judge_acceptance(
                    after.sample[key],
                    before.sample[key],
                    1e-9,
                    what=what,
                    against="DFLASH of the old service",
                    higher_is_better=better,
                )
                for key, what, better in (
                    ("steps_per_token", "verify steps per token", False),
                    ("accept_length", "accept length", True),
                )
            ]
        )
        return {"sample": after.sample, "acceptance": judged.figures}, judged.reason, judged.verdict
    if name == "soak":
        memory = [18_000 + 400 * (1 - math.exp(-i / 3)) for i in range(41)]
        data = {
            "requests": 200,
            "concurrency": 4,
            "seconds": 41.0,
            "memory_mib": memory,
            "gpu_mib": [131_072] * 41,
        }
        return data, "", ""
    if name == "benchmark":
        spread = RestartSpread(0.09, 7) if kind == "noisy" else RestartSpread(0.007, 8)
        loop = [0.2 * math.exp(before.rng.gauss(0, 0.004)) for _ in range(8)]
        said = judge(
            Measurements(before.judged(), after.judged(), 0.95, spread, loop_before=loop, loop_after=loop)
        )
        return (
            {"sample": after.sample, "after": after.bench(), "speed": said.figures},
            said.reason,
            said.verdict,
        )
    return None, "", ""


def _tail(kind: str, name: str) -> str:
    if name == "compile" and kind == "compile":
        return 'File "ddtree_worker.py", line 88\n    def (:\n        ^\nSyntaxError: invalid syntax <b>\n'
    if name == "smoke":
        return "ddtree_import_ok 5 [0, 1] 777 None\n"
    return "  0%|          | 0/300\r 50%|#####     | 150/300\r100%|##########| 300/300\n\x1b[32mdone\x1b[0m\n"
