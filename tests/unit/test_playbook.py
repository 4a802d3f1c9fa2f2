"""Playbooks: what ships, what is refused, and what crosses the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import playbook
from tests.unit.planning import PLAYBOOK, PROMPTS, ROLLBACK, write

REPO = Path(__file__).parents[2]
HEAD = "schema: 1\nname: x\naction: rollout\nsteps:\n"


def steps(*items: str) -> str:
    """A rollout; the first step is on line 5."""
    return HEAD + "".join(f"  - {item}\n" for item in items)


MINIMAL = ("lock", "preflight", "backup", "stage", "install", "unlock")
REFUSED = {
    "no steps": (f"{HEAD[:-1]} []\n", ":4: steps: no steps are listed"),
    "another schema": (HEAD.replace("1", "2") + "  - lock\n", ":1: schema: 2 (a number) is not one of 1"),
    "unknown action": (
        HEAD.replace("rollout", "deploy") + "  - lock\n",
        ":3: action: 'deploy' is not one of 'rollout', 'rollback', 'verify'",
    ),
    "unknown step": (steps("lock", "instal"), ":6: steps[1]: unknown step 'instal'; did you mean 'install'?"),
    "number as step": (steps("7"), ":5: steps[0]: expected the name of a step, got a number"),
    "two steps in one": (
        steps("{lock: {}, backup: {}}"),
        ":5: steps[0]: a step is one word and its options, got the keys lock, backup",
    ),
    "options are a list": (
        steps("preflight: [1GiB]"),
        ":5: steps[0].preflight: expected the options of preflight as a mapping, got a list",
    ),
    "unknown option": (
        steps("preflight: {minfree: 1GiB}"),
        ":5: steps[0].preflight.minfree: unknown key 'minfree'; did you mean 'min_free'?",
    ),
    "option of another step": (
        steps("lock: {requests: 3}"),
        ":5: steps[0].lock.requests: unknown key 'requests'; known: timeout",
    ),
    "zero timeout": (steps("lock: {timeout: 0s}"), ":5: steps[0].lock.timeout: '0s' must be more than zero"),
    "more needed than asked": (
        steps("health: {requests: 2, need: 3}"),
        ":5: steps[0].health: need (3) is more than requests (2)",
    ),
    "ratio": (
        steps("benchmark: {min_ratio: 0}"),
        ":5: steps[0].benchmark.min_ratio: must be greater than 0, got 0 (a number)",
    ),
    "truth as ratio": (
        steps("benchmark: {min_ratio: true}"),
        ":5: steps[0].benchmark.min_ratio: expected a number, got true (a boolean)",
    ),
    "run without command": (steps("run: {name: a}"), ":5: steps[0].run.command: missing key 'command'"),
    "run with empty command": (
        steps("run: {name: a, command: []}"),
        ":5: steps[0].run.command: the command is empty",
    ),
    "run called like a step": (
        steps("run: {name: stop, command: [x]}"),
        ":5: steps[0].run.name: 'stop' is the name of a step kind; call it something else",
    ),
    "no prompts file": (
        steps("baseline: {prompts: nosuch.jsonl}"),
        ":5: steps[0].baseline.prompts: {dir}/nosuch.jsonl: prompts file does not exist",
    ),
    "too few prompts": (
        steps("baseline: {tokens: 33}"),
        ":5: steps[0].baseline.tokens: 33 prompts wanted, {dir}/prompts.jsonl has 32",
    ),
    "too few prompts for the benchmark": (
        steps("baseline: {bench: {num_prompts: 64}}"),
        ":5: steps[0].baseline.bench.num_prompts: 64 prompts wanted, {dir}/prompts.jsonl has 32",
    ),
    "answers too short for SGLang's client": (
        steps("baseline: {bench: {output_len: 2}}"),
        ":5: steps[0].baseline.bench.output_len: must be greater than or equal to 4, got 2 (a number)",
    ),
    "missing": (
        steps("lock", "preflight", "stage", "install", "unlock"),
        ":4: steps: the step 'backup' is missing; "
        "a rollout needs lock, preflight, backup, stage, install, unlock",
    ),
    "twice": (steps("lock", "lock"), ":6: lock: 'lock' is listed twice, first on line 5"),
    "backup after install": (
        steps("lock", "preflight", "stage", "install", "backup", "unlock"),
        ":9: backup: 'backup' must come before 'install' (line 8)",
    ),
    "lock after preflight": (
        steps("preflight", "lock", "backup", "stage", "install", "unlock"),
        ":6: lock: 'lock' must come before 'preflight' (line 5)",
    ),
    "install before stop": (
        steps("lock", "preflight", "backup", "stage", "install", "stop", "start", "unlock"),
        ":10: stop: 'stop' must come before 'install' (line 9)",
    ),
    "health after unlock": (
        steps("lock", "preflight", "backup", "stage", "stop", "install", "start", "unlock", "health"),
        ":13: health: 'health' must come before 'unlock' (line 12)",
    ),
    "stop without start": (
        steps("lock", "preflight", "backup", "stage", "stop", "install", "unlock"),
        ":9: stop: 'stop' needs the step 'start'",
    ),
    "tokens without baseline": (
        steps("lock", "preflight", "backup", "stage", "stop", "install", "start", "tokens", "unlock"),
        ":12: tokens: 'tokens' needs the step 'baseline'",
    ),
    "benchmark without bench": (
        steps(*MINIMAL[:4], "baseline: {bench: null}", "stop", "install", "start", "benchmark", "unlock"),
        ":13: benchmark: 'benchmark' compares with a baseline that has no bench (bench: null)",
    ),
    "too few rounds to judge": (
        steps(
            *MINIMAL[:4], "baseline: {bench: {rounds: 4}}", "stop", "install", "start", "benchmark", "unlock"
        ),
        ":9: baseline: 4 rounds cannot be judged, 5 can; or min_ratio: null, to report only",
    ),
    "rounds in two places": (
        steps(*MINIMAL[:4], "baseline", "stop", "install", "start", "benchmark: {bench: {}}", "unlock"),
        ":13: benchmark: the rounds are those of the baseline: write `bench` there",
    ),
    "nothing could pass": (
        steps("benchmark: {min_ratio: 1.2}"),
        ":5: steps[0].benchmark: expected_ratio (1) must be above min_ratio (1.2), or nothing could pass",
    ),
    "the old name of an option": (
        steps("benchmark: {min_speed_ratio: 0.5}"),
        ":5: steps[0].benchmark.min_speed_ratio: unknown key 'min_speed_ratio'; did you mean 'min_ratio'?",
    ),
    "a share above one": (
        steps("tokens: {max_tie_share: 2}"),
        ":5: steps[0].tokens.max_tie_share: must be less than or equal to 1, got 2 (a number)",
    ),
    "half of a baseline file": (
        steps("acceptance: {against: x.json}"),
        ":5: steps[0].acceptance: against (a baseline file) and dataset (which of its data sets) "
        "belong together",
    ),
    "a verify that installs": (
        "schema: 1\nname: x\naction: verify\nsteps: [lock, stage, install, unlock]\n",
        ":4: install: 'install' has no place in a verify: it installs nothing and leaves the service alone",
    ),
    "a verify without rounds": (
        "schema: 1\nname: x\naction: verify\nsteps: [lock, stage, benchmark, unlock]\n",
        ":4: benchmark: without a baseline `benchmark` needs `prompts` and `bench` of its own",
    ),
    "run before lock": (
        steps("run: {name: a, command: [x]}", *MINIMAL),
        ":5: a: the run step 'a' must stand between lock and unlock",
    ),
    "run after unlock": (
        steps(*MINIMAL, "run: {name: a, command: [x]}"),
        ":11: a: the run step 'a' must stand between lock and unlock",
    ),
    "smoke in a rollback": (
        ROLLBACK.replace("stage,", "stage, smoke,"),
        ":4: smoke: 'smoke' has no place in a rollback: there is no payload",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    text, says = REFUSED[name]
    write(tmp_path, {"p.yaml": text.encode(), "prompts.jsonl": PROMPTS})
    with pytest.raises(InputError) as caught:
        playbook.load(tmp_path / "p.yaml")
    wanted = f"{tmp_path}/p.yaml{says.replace('{dir}', str(tmp_path))}; nothing was touched"
    assert caught.value.render() == wanted


BAD_PROMPTS = {
    "not JSON": ("{", ":1: not JSON: "),
    "one turn": ('{"conversations": [{"content": "a"}]}', ":1: expected {conversations: [prompt, answer]}"),
    "no text": (
        '{"conversations": [{"content": ""}, {}]}',
        ":1: the first turn has no text under content or value",
    ),
    "no answer": (
        '{"conversations": [{"content": "a"}, {"from": "gpt"}]}',
        ":1: the second turn has no text under content or value",
    ),
    "a list": ("[1]", ":1: expected {conversations: [prompt, answer]}"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_prompts_that_sglang_would_drop_silently_are_refused(name: str, tmp_path: Path) -> None:
    line, says = BAD_PROMPTS[name]
    write(tmp_path, {"p.yaml": PLAYBOOK, "prompts.jsonl": line + "\n"})
    with pytest.raises(InputError) as caught:
        playbook.load(tmp_path / "p.yaml")
    assert caught.value.render().startswith(f"{tmp_path}/prompts.jsonl{says}")


def test_options_cross_the_wire_in_seconds_and_bytes(tmp_path: Path) -> None:
    text = steps(
        "lock",
        "preflight: {min_free: 2MiB, timeout: 90s}",
        "run: {name: warm, command: [touch, x], undo: [rm, x], user: sgl}",
        "backup",
        "stage",
        "baseline: {tokens: 2, hang_after: 2m, bench: {rounds: 3, min_round: 2s, also: [1, 8]}}",
        "stop: {drain: 0s, kill: true}",
        "install",
        "start",
        "health: {requests: 5, need: 4, deadline: 1m}",
        "soak: {hang_after: 5s}",
        "unlock",
    )
    write(tmp_path, {"p.yaml": text.encode(), "prompts.jsonl": PROMPTS})
    made = playbook.load(tmp_path / "p.yaml")
    options = {step.name: (step.kind, step.timeout_s, step.options) for step in made.steps}
    assert options["preflight"] == ("preflight", 90.0, {"min_free_bytes": 2 * 1024**2})
    assert options["warm"] == (
        "run",
        600,
        {"command": ["touch", "x"], "undo": ["rm", "x"], "user": "sgl"},
    )
    assert options["baseline"][2] == {
        "hang_after_s": 120.0,
        "prompts": "attachments/prompts.jsonl",
        "tokens": 2,
        "max_new_tokens": 32,
        "bench": {
            "num_prompts": 32,
            "concurrency": 4,
            "output_len": 32,
            "rounds": 3,
            "also": [1, 8],
            "min_round_s": 2.0,
        },
    }
    assert options["stop"] == ("stop", None, {"drain_s": 0.0, "kill": True})
    assert options["health"][2] == {"requests": 5, "need": 4, "max_new_tokens": 8, "deadline_s": 60.0}
    assert options["soak"][2]["hang_after_s"] == 5.0
    assert made.attachments == {"attachments/prompts.jsonl": PROMPTS.encode()}


def test_a_gate_may_be_left_out_but_not_the_way_back(tmp_path: Path) -> None:
    write(tmp_path, {"p.yaml": steps(*MINIMAL).encode()})
    assert [step.kind for step in playbook.load(tmp_path / "p.yaml").steps] == list(MINIMAL)


@pytest.mark.parametrize("name", ["rollout", "rollback", "sandbox", "verify"])
def test_the_playbooks_that_ship(name: str) -> None:
    made = playbook.load(REPO / f"playbooks/{name}.yaml")
    assert (made.name, made.action) == (name, "rollout" if name == "sandbox" else name)
    assert [step.kind for step in made.steps][-1] == "unlock"
