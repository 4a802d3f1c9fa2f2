"""baseline and benchmark with a stand-in for SGLang's client, run as a process like the real one."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.context import Context, StepFailed
from ddtree_deploy.onhost.measure import bench_rounds, greedy
from ddtree_deploy.onhost.wire.protocol import Launch, StepSpec

from .serving_support import Lab, do, journal_text, lab_at, launch, of

CLIENT = Path(__file__).parent.parent / "lab" / "fake_bench.py"
BENCH = {"num_prompts": 12, "concurrency": 4, "output_len": 8, "rounds": 2, "min_round_s": 0.0}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        client(tmp_path, "benchmark/serving.py")
        yield made


def client(root: Path, name: str, source: str = "") -> None:
    """A package `sglang` that holds a benchmark client by that name."""
    path = root / "venv" / "sglang" / name
    for folder in {path.parent, root / "venv" / "sglang"}:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    path.write_text(source or CLIENT.read_text())


def prompts(ctx: Context, count: int) -> None:
    folder = ctx.stage_dir / "payload" / "attachments"
    folder.mkdir(parents=True)
    rows = [
        {"conversations": [{"content": f"prompt number {i}"}, {"content": "an answer"}]} for i in range(count)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def run(
    lab: Lab, *, bench: dict[str, Any] | None = BENCH, count: int = 20, old: str = "DFLASH",
    new: str = "DDTREE", **gate: Any,
) -> Context:  # fmt: skip
    """Baseline of `old`, then a restart with `new`; what cannot be resolved here is no reason to end."""
    baseline = StepSpec("baseline", "baseline", 120, {"tokens": 3, "max_new_tokens": 12, "bench": bench})
    gates = [StepSpec("acceptance", "acceptance", 120), StepSpec("benchmark", "benchmark", 120, gate)]
    lab.start_by_hand("--speculative-algorithm", old)
    wanted = Launch(set={"speculative-algorithm": new}, env={"PYTHONPATH": str(lab.root / "venv")})
    ctx = lab.context(
        lab.service("adopted", launch=wanted), baseline, "stop", "start", *gates, on_inconclusive="hold"
    )
    prompts(ctx, count)
    of(ctx).record(ctx.backup_dir)
    do(ctx, "baseline")
    do(ctx, "stop")
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    return ctx


def failed(ctx: Context, name: str = "benchmark") -> StepFailed:
    with pytest.raises(StepFailed) as e:
        do(ctx, name)
    return e.value


REPORT = {"min_ratio": None}  # the machine's own speed is not what is tested here


def test_a_better_tree_passes_with_its_figures(lab: Lab) -> None:
    ctx = run(lab, **REPORT)
    reason = do(ctx, "acceptance")
    assert "verify steps per token 0.333, DFLASH of the old service 0.500 (-33.3%" in reason
    assert "accept length 3.000, DFLASH of the old service 2.000 (+50.0%" in reason
    reason = do(ctx, "benchmark")
    assert "12 of 12 requests completed in each of 3 rounds" in reason and "speed is not judged" in reason
    figures = ctx.results["benchmark"]["after"]["figures"]
    assert set(figures) == {"output_tokens_per_s", "ttft_ms", "tpot_ms"}
    assert figures["output_tokens_per_s"] > 0
    assert "benchmark round 3 of 3" in journal_text(ctx)
    rounds = (ctx.stage_dir / "bench" / "after" / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == 3, "a fresh file for every run; the warm-up is kept, too"
    kept = ctx.results["benchmark"]["after"]["rounds"]
    assert [r["warmup"] for r in kept] == [True, False, False]
    assert ctx.results["benchmark"]["after"]["loop"] == [], "nobody judges the speed"
    assert ctx.results["baseline"]["bench"]["loop"] == []


def test_a_short_round_is_repeated_and_other_concurrencies_are_reported(lab: Lab) -> None:
    bench = {
        "num_prompts": 2,
        "concurrency": 2,
        "output_len": 4,
        "rounds": 1,
        "min_round_s": 1.5,
        "also": [1],
    }
    ctx = run(lab, bench=bench, **REPORT)
    do(ctx, "benchmark")
    before, after = ctx.results["baseline"]["bench"], ctx.results["benchmark"]["after"]
    assert before["repeats"] == after["repeats"] > 1, "after as before, whatever the speed"
    whole = before["rounds"][-1]
    assert whole["completed"] == 2 * before["repeats"] == len(whole["output_lens"])
    assert whole["output_throughput"] == pytest.approx(whole["total_output_tokens"] / whole["duration"])
    assert [row["concurrency"] for row in after["also"]] == [1]
    assert len(after["rounds"]) == 2, "they are not judged"


def test_case_19_when_a_part_of_the_requests_fails_the_gate_fails(lab: Lab) -> None:
    """300 were asked and 160 succeed: the rate of the 160 looks fine."""
    ctx = run(lab, bench={**BENCH, "rounds": 5}, min_ratio=0.01, assume_restart_sd=0.02, host_change=9.0)
    lab.mood(fail_every=2)
    judged = failed(ctx)
    assert judged.verdict == "fail" and "round 1: 6 of 12 requests completed" in judged.reason


def test_case_24_a_tree_that_accepts_less_than_the_chain_fails(lab: Lab) -> None:
    lab.mood(when={"DDTREE": {"accept": 1.5}})
    judged = failed(run(lab, **REPORT), "acceptance")
    assert "verify steps per token 0.667, DFLASH of the old service 0.500 (+33.3%" in judged.reason
    assert "accept length 1.500, DFLASH of the old service 2.000 (-25.0%" in judged.reason
    assert judged.verdict == "fail"


def test_case_24_a_little_less_fails_too(lab: Lab) -> None:
    """The tolerance is for figures of other machines; against the chain before there is none."""
    lab.mood(when={"DFLASH": {"accept": 2.0}, "DDTREE": {"accept": 1.9}})
    ctx = run(lab, **REPORT)
    ctx.step = next(s for s in ctx.plan.steps if s.name == "acceptance")
    ctx.step.options["tolerance"] = 0.5
    judged = failed(ctx, "acceptance")
    assert judged.verdict == "fail" and "tolerance 0.0%" in judged.reason


def test_equal_counts_are_equal_and_a_ratio_may_be_allowed(lab: Lab) -> None:
    lab.mood(when={"DDTREE": {"accept": 2.0}})
    ctx = run(lab, **REPORT)
    assert "+0.0%" in do(ctx, "acceptance")


def test_a_long_benchmark_tells_how_long_it_takes_yet(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(bench_rounds.time, "monotonic", lambda: clock[0])
    ctx = lab.context(lab.service(), "benchmark")
    follow = bench_rounds._Follow(ctx, bench_rounds.Bench(num_prompts=4))
    told = []
    for number, seconds in enumerate([2.0, 10.0, 10.0, 10.0], 1):  # the warm-up is shorter
        follow.line(f"DDTREE-BENCH round {number} of 4")
        told.append(follow.left())
        clock[0] += seconds
    assert told == [None, None, 20.0, 10.0]
    clock[0] -= 4.0
    follow.line(" 50%|#####     | 2/4 [00:06<00:06]")
    assert "benchmark round 4 of 4: 2 of 4 requests, about 4 s to go" in journal_text(ctx)


STATISTIC = {"min_ratio": 0.5, "assume_restart_sd": 0.02, "host_change": 9.0}


def test_a_slow_server_fails_by_its_speed(lab: Lab) -> None:
    # Sleeps that a busy machine does not stretch by much.
    lab.mood(token_s=0.1, when={"DDTREE": {"token_s": 0.8}})
    judged = failed(run(lab, bench={**BENCH, "num_prompts": 2, "output_len": 4, "rounds": 5}, **STATISTIC))
    assert judged.verdict == "fail", judged.reason
    assert judged.reason.startswith("speed ratio 0.") and "min_ratio 0.5" in judged.reason


def test_a_fast_server_passes_with_its_interval(lab: Lab) -> None:
    lab.mood(token_s=0.1)
    bench = {**BENCH, "num_prompts": 2, "output_len": 4, "rounds": 5}
    ctx = run(lab, bench=bench, **{**STATISTIC, "min_ratio": 0.1})
    assert "min_ratio 0.1" in do(ctx, "benchmark")
    before, after = ctx.results["baseline"]["bench"], ctx.results["benchmark"]["after"]
    for side in (before, after):
        loops = [r["loop_s"] for r in side["rounds"] if not r["warmup"]]
        assert loops == side["loop"] and len(loops) == side["bench"]["rounds"] and min(loops) > 0
    speed = ctx.results["benchmark"]["speed"]
    assert speed["restart"]["source"] == "assumed in the playbook"
    low, high = speed["interval"]
    assert 0.1 < low < speed["ratio"] < high
    said = ctx.results["baseline"]["resolution"]
    assert said["resolvable"] and "min_ratio 0.1 can be resolved on this host" in said["text"]


def test_without_a_calibration_nothing_is_stopped(lab: Lab) -> None:
    """It could not pass, and what cannot be decided is rolled back: so the old service is left alone."""
    lab.start_by_hand("--speculative-algorithm", "DFLASH")
    options = {"tokens": 3, "max_new_tokens": 12, "bench": {**BENCH, "rounds": 5}}
    baseline = StepSpec("baseline", "baseline", 120, options)
    service = lab.service("adopted", launch=Launch(env={"PYTHONPATH": str(lab.root / "venv")}))
    ctx = lab.context(service, baseline, StepSpec("benchmark", "benchmark", 120, {"min_ratio": 0.5}))
    prompts(ctx, 20)
    of(ctx).record(ctx.backup_dir)
    judged = failed(ctx, "baseline")
    assert judged.verdict == "inconclusive"
    for words in ("so nothing is stopped", "never calibrated", "ddtree-deploy calibrate lab"):
        assert words in judged.reason


def test_short_answers_fail_even_when_they_are_fast(lab: Lab) -> None:
    ctx = run(lab, **REPORT)
    lab.mood(fewer_tokens=1)
    assert "answers have a wrong length, as 7 instead of 8 tokens" in failed(ctx).reason


def test_speculation_without_counters_is_inconclusive(lab: Lab) -> None:
    lab.mood(when={"DDTREE": {"no_counters": True}})
    judged = failed(run(lab, **REPORT), "acceptance")
    assert judged.verdict == "inconclusive" and "no spec_verify_ct" in judged.reason


def test_not_more_requests_than_prompts_are_asked_for(lab: Lab) -> None:
    ctx = run(lab, bench={**BENCH, "num_prompts": 500}, count=6, **REPORT)
    assert "6 of 6 requests completed" in do(ctx, "benchmark")


def test_without_a_baseline_there_is_nothing_to_compare_and_no_pass(lab: Lab) -> None:
    service = lab.service(launch=dataclasses.replace(launch(lab), env={"PYTHONPATH": str(lab.root / "venv")}))
    ctx = lab.context(service, "start", StepSpec("benchmark", "benchmark", 120, {"bench": BENCH}))
    prompts(ctx, 20)
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    judged = failed(ctx)
    assert judged.verdict == "inconclusive"
    assert judged.reason.startswith("12 of 12 requests completed")
    assert "there is no baseline to compare the speed with" in judged.reason


def test_a_host_without_the_client_is_said(lab: Lab) -> None:
    (lab.root / "venv" / "sglang" / "benchmark" / "serving.py").unlink()
    with pytest.raises(StepFailed, match="this SGLang has no benchmark client"):
        run(lab)


def test_a_dependency_that_is_missing_is_not_taken_for_a_missing_client(lab: Lab) -> None:
    client(lab.root, "benchmark/serving.py", "import nosuchmodule\n")
    with pytest.raises(StepFailed, match="No module named 'nosuchmodule'"):
        run(lab)


def test_the_older_client_has_its_parser_in_its_main_part(lab: Lab) -> None:
    """Before 0.5.14: `sglang.bench_serving`, without `cli_main`."""
    (lab.root / "venv" / "sglang" / "benchmark" / "serving.py").unlink()
    source = CLIENT.read_text().split("def cli_main")[0]
    client(
        lab.root, "bench_serving.py",
        source + 'if __name__ == "__main__":\n    args = _parser().parse_args()\n    run_benchmark(args)\n',
    )  # fmt: skip
    ctx = run(lab, **REPORT)
    assert "12 of 12 requests completed in each of 3 rounds" in do(ctx, "benchmark")


def test_a_server_that_does_not_repeat_itself_is_no_reference(lab: Lab) -> None:
    lab.start_by_hand()
    ctx = lab.context(
        lab.service("adopted"), StepSpec("baseline", "baseline", 60, {"tokens": 2, "bench": None})
    )
    prompts(ctx, 4)
    original, calls = greedy.sample, []

    def drifting(*args: Any, **options: Any) -> greedy.Sample:
        calls.append(1)
        if len(calls) == 2:
            lab.mood(wrong_tokens=3)
        return original(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "sample", drifting)
        with pytest.raises(StepFailed) as e:
            do(ctx, "baseline")
    assert e.value.verdict == "inconclusive" and "does not repeat" in e.value.reason
    assert "prompt 0, position 3" in e.value.reason and "gap 2: no tie" in e.value.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no prompt"), ("{", "prompts.jsonl:1"), ('\n{"conversations": [1, 2]}\n', "prompts.jsonl:2")],
)
def test_a_broken_prompts_file_is_named_with_its_line(lab: Lab, text: str, words: str) -> None:
    ctx = lab.context(lab.service(), "baseline")
    folder = ctx.stage_dir / "payload" / "attachments"
    folder.mkdir(parents=True)
    (folder / "prompts.jsonl").write_text(text)
    with pytest.raises(StepFailed, match=words):
        greedy.load_prompts(ctx, "attachments/prompts.jsonl")


def test_the_key_goes_to_the_client_by_its_environment(lab: Lab) -> None:
    source = (
        CLIENT.read_text()
        .replace("import json\n", "import json\nimport os\n", 1)
        .replace(
            '{"Content-Type": "application/json"},',
            '{"Content-Type": "application/json", "Authorization": "Bearer " + os.getenv("OPENAI_API_KEY")},',
        )
    )
    client(lab.root, "benchmark/serving.py", source)
    wanted = dataclasses.replace(
        launch(lab, "--api-key", "s3cret-key"), env={"PYTHONPATH": str(lab.root / "venv")}
    )
    spec = StepSpec("benchmark", "benchmark", 120, {"bench": BENCH})
    ctx = lab.context(lab.service(launch=wanted), "start", spec, secrets={"api_key": "s3cret-key"})
    prompts(ctx, 20)
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    assert failed(ctx).reason.startswith("12 of 12 requests completed")
    shown = journal_text(ctx) + "".join(p.read_text() for p in ctx.logs_dir.iterdir())
    shown += (ctx.stage_dir / "bench" / "after" / "request.json").read_text()
    assert "s3cret" not in shown
    assert sys.executable in shown
