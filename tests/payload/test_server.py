"""Real servers on the CPU: DDTREE's output is the target's own, token for token, and it accepts more."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from chi_square import chi_square
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


def transformers_says(what, prompts, new_tokens, folder):
    """The answer of ``hf_reference.py``, which runs transformers in the SGLang venv."""
    prompts_file, out = folder / f"{what}_prompts.json", folder / f"{what}.json"
    prompts_file.write_text(json.dumps(prompts))
    script = [sglang_python(), str(HERE / "hf_reference.py"), what, str(MODELS / "target")]
    done = subprocess.run(
        [*script, str(prompts_file), str(new_tokens), str(out)],
        check=False,
        env=sglang_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def reference(payload, tmp_path_factory):
    """Greedy continuations of all prompts by transformers alone."""
    results = transformers_says("greedy", PROMPTS, NEW_TOKENS, tmp_path_factory.mktemp("reference"))
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


@pytest.fixture(scope="module")
def plain_answers(start, reference):
    """What the server without speculation, itself held against transformers, says to the edge cases."""
    server = start("plain", [])
    assert_lossless(server, reference)
    return {name: answer_of(server, body(reference)) for name, body in EDGE_CASES.items()}


def answer_of(server, body):
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    return answer["output_ids"], answer["text"], answer["meta_info"]["finish_reason"]


def edge(text=PROMPTS[0], **sampling):
    return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, **sampling}}


# Ends that fall inside an accepted path, or right behind one; stop tokens come from the known continuation.
EDGE_CASES = {
    **{
        f"stop token {at}": lambda ref, at=at: edge(stop_token_ids=[ref.tokens[0][at]])
        for at in (1, 7, 20, 33)
    },
    **{
        f"{n} new tokens": lambda ref, n=n: edge(max_new_tokens=n, ignore_eos=True)
        for n in (1, 2, 3, 6, 11, 47)
    },
    "end of sequence allowed": lambda ref: edge(PROMPTS[3], max_new_tokens=200),
    "stop string": lambda ref: edge(stop=["e", "\n"], ignore_eos=True),
    "stop string of two characters": lambda ref: edge(PROMPTS[1], stop=["in", "er"], ignore_eos=True),
    "stop regex": lambda ref: edge(PROMPTS[2], stop_regex="[a-z]{2}", ignore_eos=True),
    "logit bias": lambda ref: edge(logit_bias={str(ref.tokens[0][4]): -100.0}, ignore_eos=True),
    "the end of the context": lambda ref: {
        "input_ids": [5 + i % 400 for i in range(2030)],
        "sampling_params": {"temperature": 0, "max_new_tokens": 17, "ignore_eos": True},
    },
    "a prompt of one token": lambda ref: {"input_ids": [7], "sampling_params": edge()["sampling_params"]},
}


def test_without_speculation_the_server_equals_transformers(plain_answers):
    ends = [finish["type"] for _, _, finish in plain_answers.values()]
    assert {"stop", "length"} <= set(ends)


@pytest.fixture(scope="module")
def chain_length(start, reference, plain_answers):
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


@pytest.mark.parametrize("case", EDGE_CASES)
def test_an_edge_case_ends_as_without_speculation(ddtree, reference, plain_answers, case):
    assert answer_of(ddtree, EDGE_CASES[case](reference)) == plain_answers[case]


def test_sampled_tokens_have_the_targets_law(ddtree, payload, tmp_path):
    """The joint law of three tokens at temperature 1, top_k 2, by chi-square against transformers' own."""
    draws, new_tokens = 640, 3
    cells = transformers_says("law", PROMPTS[:1], new_tokens, tmp_path)
    answers = ddtree.generate(
        PROMPTS[:1] * draws, batch=64, temperature=1.0, top_k=2, max_new_tokens=new_tokens
    )
    seen = [tuple(ids) for ids in output_ids(answers)]
    counts = [seen.count(tuple(tokens)) for tokens, _ in cells]
    assert sum(counts) == draws, "a continuation outside top_k was drawn"
    statistic, critical = chi_square(counts, [probability for _, probability in cells])
    print(f"sampling on the server: chi-square {statistic:.1f}, critical {critical:.1f}, {draws} draws")
    assert statistic < critical


def test_greedy_requests_in_a_sampled_batch_stay_greedy(ddtree, reference):
    def parameters(row):
        return {"temperature": row % 2 * 0.9, "top_p": 0.9, "max_new_tokens": 24, "ignore_eos": True}

    body = {"text": PROMPTS[:8], "sampling_params": [parameters(row) for row in range(8)]}
    status, answers = ddtree.request("/generate", body)
    assert status == 200, answers
    equal = [ids == row[:24] for ids, row in zip(output_ids(answers), reference.tokens, strict=False)]
    assert equal[::2] == [True] * 4
    assert not all(equal[1::2]), "the sampled requests came out greedy"


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
def controls(start, tmp_path_factory, reference):
    """The oracle draft under forced retraction, and a way to break verify between two requests."""
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
        server = start(
            "controls",
            [*DDTREE, "--disable-radix-cache"],
            folder,
            DDTREE_CONTROLS=str(file),
            SGLANG_TEST_RETRACT="1",
        )
        return server.generate(PROMPTS[:16])

    return run


def test_with_an_oracle_draft_whole_branches_are_accepted(controls, reference):
    answers = controls()
    first = Reference(reference.tokens[:16], reference.gaps[:16])
    assert divergences(output_ids(answers), first)[0] == []
    assert accept_length(answers) > 3
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0


@pytest.mark.parametrize("broken", ["mask", "move"])
def test_a_broken_verify_changes_the_output(controls, reference, broken):
    first = Reference(reference.tokens[:16], reference.gaps[:16])
    wrong, _ = divergences(output_ids(controls(broken)), first)
    assert len(wrong) >= 8, f"{broken} left out, and only {len(wrong)} of 16 outputs changed"
