"""Real servers on the CPU: DDTREE's output is the target's own, token for token, and it accepts more."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from sglang_venv import (
    MODELS,
    PAYLOAD,
    PROMPTS,
    Server,
    accept_length,
    ensure_models,
    install_as_wheel,
    output_ids,
    sglang_environment,
    sglang_python,
)

pytestmark = pytest.mark.sglang

HERE = Path(__file__).parent
NEW_TOKENS = 64
TIE_GAP = 1e-4  # below it, the reference's best and second token are one rounding apart
SERIAL = 4  # prompts that are also run one at a time
DRAFT = ["--speculative-draft-model-path", str(MODELS / "draft_half")]
DDTREE = ["--speculative-algorithm", "DDTREE", *DRAFT, "--speculative-ddtree-budget", "16"]


class Reference(NamedTuple):
    tokens: list[list[int]]
    gaps: list[list[float]]


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    """A folder for PYTHONPATH that holds the payload as the host would have it."""
    sglang_python()
    ensure_models()
    folder = tmp_path_factory.mktemp("payload")
    install_as_wheel(folder, PAYLOAD / "sglang_ddtree", "ddtree", "sglang_ddtree.plugin:register")
    return folder


@pytest.fixture(scope="module")
def start(payload, tmp_path_factory):
    """Start a server and stop whatever server the last test left: two cores hold one at a time."""
    running = {}

    def start_server(name, arguments, *python_path, **variables):
        if name not in running:
            for server in running.values():
                server.stop()
            log = tmp_path_factory.mktemp("logs") / f"{name}.log"
            running.clear()
            running[name] = Server(name, log, [payload, *python_path], arguments, **variables)
            running[name].wait_until_ready()
        return running[name]

    yield start_server
    for server in running.values():
        server.stop()


@pytest.fixture(scope="module")
def reference(payload, tmp_path_factory):
    """Greedy continuations of all prompts by transformers alone."""
    folder = tmp_path_factory.mktemp("reference")
    prompts, out = folder / "prompts.json", folder / "out.json"
    prompts.write_text(json.dumps(PROMPTS))
    done = subprocess.run(
        [
            sglang_python(),
            str(HERE / "hf_reference.py"),
            str(MODELS / "target"),
            str(prompts),
            str(NEW_TOKENS),
            str(out),
        ],
        check=False,
        env=sglang_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    return Reference([one["tokens"] for one in results], [one["gaps"] for one in results])


def divergences(found, reference):
    """Prompts whose output leaves the reference where it is no tie, and the number of ties."""
    wrong, ties = [], 0
    for index, (ours, theirs, gaps) in enumerate(zip(found, reference.tokens, reference.gaps, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
        if at is not None and gaps[at] < TIE_GAP:
            ties += 1
        elif at is not None:
            wrong.append((index, at, gaps[at]))
    return wrong, ties


def assert_lossless(server, reference):
    """Batched and one at a time, the server's greedy output is the reference. Returns the batched answers."""
    batched = server.generate(PROMPTS)
    serial = server.generate(PROMPTS[:SERIAL], batch=1)
    first = Reference(reference.tokens[:SERIAL], reference.gaps[:SERIAL])
    for name, answers, expected in (("batched", batched, reference), ("serial", serial, first)):
        wrong, ties = divergences(output_ids(answers), expected)
        print(f"{server.name} {name}: {len(answers)} prompts, {ties} ties")
        assert wrong == [], f"{server.name} {name}: (prompt, position, gap) {wrong}"
        assert ties <= 2
    return batched


def test_without_speculation_the_server_equals_transformers(start, reference):
    assert_lossless(start("plain", []), reference)


@pytest.fixture(scope="module")
def chain_length(start, reference):
    server = start("dflash", ["--speculative-algorithm", "DFLASH", *DRAFT])
    return accept_length(assert_lossless(server, reference))


def test_dflash_equals_no_speculation(chain_length):
    assert chain_length > 1.2, "the half-trained draft should be right now and then"


@pytest.fixture
def ddtree(start, chain_length):
    return start("ddtree", [*DDTREE, "--speculative-ddtree-debug-metrics"])


def test_ddtree_equals_no_speculation_and_accepts_more_than_the_chain(ddtree, reference, chain_length):
    tree_length = accept_length(assert_lossless(ddtree, reference))
    print(f"accept length: chain {chain_length:.3f}, tree {tree_length:.3f}")
    assert tree_length > chain_length + 0.1


def test_server_info_tells_the_algorithm_and_the_values_in_effect(ddtree):
    _, info = ddtree.request("/server_info")
    assert info["speculative_algorithm"] == "DDTREE"
    assert (info["speculative_ddtree_budget"], info["speculative_num_draft_tokens"]) == (16, 17)


@pytest.mark.parametrize(
    ("body", "feature"),
    [
        ({"return_logprob": True}, "return_logprob"),
        ({"sampling_params": {"temperature": 0, "frequency_penalty": 0.5}}, "frequency_penalty"),
        ({"sampling_params": {"temperature": 0, "min_new_tokens": 4}}, "min_new_tokens"),
        ({"sampling_params": {"temperature": 0, "regex": "a+"}}, "regex"),
    ],
)
def test_a_request_that_ddtree_cannot_honour_is_refused_and_named(ddtree, body, feature):
    status, answer = ddtree.request("/generate", {"text": "the quick", **body})
    assert status == 400, answer
    assert feature in json.dumps(answer)
    assert ddtree.generate(["the quick"], max_new_tokens=4)[0]["meta_info"]["completion_tokens"] == 4


def test_mixed_lengths_end_where_the_request_says(ddtree, reference):
    lengths = [1, 2, 3, 5, 8, 13, 21, 34]
    body = {
        "text": PROMPTS[:8],
        "sampling_params": [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in lengths],
    }
    status, answers = ddtree.request("/generate", body)
    assert status == 200, answers
    assert output_ids(answers) == [row[:n] for row, n in zip(reference.tokens, lengths, strict=False)]


def test_a_stop_token_inside_an_accepted_path_ends_the_request_there(ddtree, reference):
    for row, prompt in zip(reference.tokens[:8], PROMPTS, strict=False):
        stop = row[20]
        answer = ddtree.generate([prompt], stop_token_ids=[stop])[0]
        assert answer["output_ids"] == row[: row.index(stop) + 1]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_every_verified_tree_was_logged_and_none_broke_an_invariant(ddtree):
    log = ddtree.log.read_text(errors="replace")
    lines = [
        json.loads(line.split("ddtree_verify ")[1]) for line in log.splitlines() if "ddtree_verify " in line
    ]
    assert "ddtree_invariant_broken" not in log
    assert len(lines) > 500
    assert sum(line["accepted_draft_count"] for line in lines) > sum(
        line["chain_accepted_draft_count"] for line in lines
    )
    assert max(line["accepted_path_depth"] for line in lines) >= 4


@pytest.fixture
def controls(start, chain_length, tmp_path_factory, reference):
    """The oracle draft, and a way to break verify between two requests."""
    folder = tmp_path_factory.getbasetemp() / "controls"
    if not folder.exists():
        folder.mkdir()
        install_as_wheel(
            folder, HERE / "controls" / "ddtree_controls.py", "controls", "ddtree_controls:register"
        )
    file = folder / "controls.json"

    def run(broken=None):
        file.write_text(json.dumps({"oracle": reference.tokens, "break": broken}))
        # Broken KV must not outlive its case in the radix cache.
        server = start("controls", [*DDTREE, "--disable-radix-cache"], folder, DDTREE_CONTROLS=str(file))
        return server.generate(PROMPTS[:16])

    return run


def test_with_an_oracle_draft_whole_branches_are_accepted(controls, reference):
    answers = controls()
    first = Reference(reference.tokens[:16], reference.gaps[:16])
    assert divergences(output_ids(answers), first)[0] == []
    assert accept_length(answers) > 3


@pytest.mark.parametrize("broken", ["mask", "move"])
def test_a_broken_verify_changes_the_output(controls, reference, broken):
    first = Reference(reference.tokens[:16], reference.gaps[:16])
    wrong, _ = divergences(output_ids(controls(broken)), first)
    assert len(wrong) >= 8, f"{broken} left out, and only {len(wrong)} of 16 outputs changed"
