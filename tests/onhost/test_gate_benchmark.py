"""baseline and benchmark with a stand-in for SGLang's client, run as a process like the real one."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost import measure
from ddtree_deploy.onhost.context import Context, StepFailed, StepSkipped
from ddtree_deploy.onhost.protocol import Launch, StepSpec

from .serving_support import Lab, do, journal_text, lab_at, launch, of

CLIENT = Path(__file__).parent.parent / "lab" / "fake_bench.py"
BENCH = {"num_prompts": 12, "concurrency": 4, "output_len": 8, "rounds": 2}


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
    """Baseline of `old`, then a restart with `new`."""
    baseline = StepSpec("baseline", "baseline", 120, {"tokens": 3, "max_new_tokens": 12, "bench": bench})
    gates = [StepSpec("benchmark", "benchmark", 120, gate)]
    lab.start_by_hand("--speculative-algorithm", old)
    wanted = Launch(set={"speculative-algorithm": new}, env={"PYTHONPATH": str(lab.root / "venv")})
    ctx = lab.context(lab.service("adopted", launch=wanted), baseline, "stop", "start", *gates)
    prompts(ctx, count)
    of(ctx).record(ctx.backup_dir)
    do(ctx, "baseline")
    do(ctx, "stop")
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    return ctx


def failed(ctx: Context) -> StepFailed:
    with pytest.raises(StepFailed) as e:
        do(ctx, "benchmark")
    return e.value


def test_a_better_tree_passes_with_its_figures(lab: Lab) -> None:
    ctx = run(lab, min_speed_ratio=0.01)
    reason = do(ctx, "benchmark")
    assert "12 of 12 requests completed in each of 2 rounds" in reason
    assert "verify steps per token 0.5000 before, 0.3333 now" in reason
    assert "accept length 3.000" in reason
    figures = ctx.results["benchmark"]["after"]["figures"]
    assert set(figures) == {"output_tokens_per_s", "ttft_ms", "tpot_ms"}
    assert figures["output_tokens_per_s"] > 0
    assert "benchmark round 2 of 2" in journal_text(ctx)
    rounds = (ctx.stage_dir / "bench" / "after" / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == 2, "a fresh file for every run"


def test_case_19_when_a_part_of_the_requests_fails_the_gate_fails(lab: Lab) -> None:
    ctx = run(lab, min_speed_ratio=0.01)
    lab.mood(fail_every=7)  # the three greedy outputs of the gate pass, then requests of the client fail
    reason = failed(ctx).reason
    assert "of 12 requests completed" in reason or "status 500" in reason


def test_case_24_a_tree_that_accepts_less_than_the_chain_fails(lab: Lab) -> None:
    lab.mood(when={"DDTREE": {"accept": 1.5}})
    judged = failed(run(lab, min_speed_ratio=0.01))
    assert "verify steps per token 0.5000 before, 0.6667 now: more than 1 times as many" in judged.reason
    assert judged.verdict == "fail"


def test_a_slow_server_fails_by_its_speed(lab: Lab) -> None:
    lab.mood(token_s=0.02, when={"DDTREE": {"token_s": 0.4}})
    judged = failed(run(lab, bench={**BENCH, "rounds": 1}, min_speed_ratio=0.5))
    assert "below 0.5" in judged.reason and "tok/s before" in judged.reason


def test_short_answers_fail_even_when_they_are_fast(lab: Lab) -> None:
    ctx = run(lab, min_speed_ratio=0.01)
    lab.mood(fewer_tokens=1)
    assert "11 of 12 tokens came back" in failed(ctx).reason


def test_speculation_without_counters_is_inconclusive(lab: Lab) -> None:
    lab.mood(when={"DDTREE": {"no_counters": True}})
    judged = failed(run(lab, min_speed_ratio=0.01))
    assert judged.verdict == "inconclusive" and "no spec_verify_ct" in judged.reason


def test_not_more_requests_than_prompts_are_asked_for(lab: Lab) -> None:
    ctx = run(lab, bench={**BENCH, "num_prompts": 500}, count=6, min_speed_ratio=0.01)
    assert "6 of 6 requests completed" in do(ctx, "benchmark")


def test_without_a_baseline_there_is_nothing_to_compare_and_no_pass(lab: Lab) -> None:
    service = lab.service(launch=dataclasses.replace(launch(lab), env={"PYTHONPATH": str(lab.root / "venv")}))
    ctx = lab.context(service, "start", StepSpec("benchmark", "benchmark", 120, {"bench": BENCH}))
    prompts(ctx, 20)
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    with pytest.raises(StepSkipped, match="no baseline to compare with: 12 of 12 requests completed"):
        do(ctx, "benchmark")


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
    ctx = run(lab, min_speed_ratio=0.01)
    assert "12 of 12 requests completed in each of 2 rounds" in do(ctx, "benchmark")


def test_a_server_that_does_not_repeat_itself_is_no_reference(lab: Lab) -> None:
    from ddtree_deploy.onhost.steps import baseline

    lab.start_by_hand()
    ctx = lab.context(
        lab.service("adopted"), StepSpec("baseline", "baseline", 60, {"tokens": 2, "bench": None})
    )
    prompts(ctx, 4)
    original, calls = measure.sample, []

    def drifting(*args: Any) -> measure.Sample:
        calls.append(1)
        if len(calls) == 2:
            lab.mood(wrong_tokens=3)
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline.measure, "sample", drifting)
        with pytest.raises(StepFailed) as e:
            do(ctx, "baseline")
    assert e.value.verdict == "inconclusive" and "does not repeat" in e.value.reason


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
        measure.load_prompts(ctx, "attachments/prompts.jsonl")


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
    with pytest.raises(StepSkipped, match="12 of 12 requests completed"):
        do(ctx, "benchmark")
    shown = journal_text(ctx) + "".join(p.read_text() for p in ctx.logs_dir.iterdir())
    shown += (ctx.stage_dir / "bench" / "after" / "request.json").read_text()
    assert "s3cret" not in shown
    assert sys.executable in shown
