"""Real servers on the CPU: DDTREE's output is the target's own, token for token, and it accepts more."""

import json

import pytest
from chi_square import chi_square
from serving import DDTREE, DRAFT, NEW_TOKENS, assert_lossless, transformers_says, verified_trees
from sglang_venv import PROMPTS, accept_length, output_ids

pytestmark = pytest.mark.sglang


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
        ({"sampling_params": {"temperature": 0, "presence_penalty": 0.5}}, "presence_penalty"),
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


def test_logprobs_of_greedy_tokens_are_the_targets(v2_only, ddtree, reference):
    body = {
        "text": PROMPTS[:4],
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    status, answers = ddtree.request("/generate", body)
    assert status == 200, answers
    for row, answer in enumerate(answers):
        told = answer["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in told] == reference.tokens[row] == answer["output_ids"]
        assert [value for value, _, _ in told] == pytest.approx(reference.logprobs[row], abs=1e-3)
        gaps = [best[0] - second[0] for best, second in answer["meta_info"]["output_top_logprobs"]]
        assert gaps == pytest.approx(reference.gaps[row], abs=1e-3)


def test_logprobs_of_sampled_tokens_are_those_of_a_prefill(v2_only, ddtree):
    """What was drawn is sent back as a prompt: its log-probs then come without any speculation."""
    body = {
        "text": PROMPTS[5],
        "sampling_params": {"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    status, answer = ddtree.request("/generate", body)
    assert status == 200, answer
    told = answer["meta_info"]["output_token_logprobs"]
    prompt = [token for _, token, _ in answer["meta_info"]["input_token_logprobs"]]
    body = {
        "input_ids": prompt + answer["output_ids"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    status, again = ddtree.request("/generate", body)
    assert status == 200, again
    expected = again["meta_info"]["input_token_logprobs"][len(prompt) :]
    assert [value for value, _, _ in told] == pytest.approx([value for value, _, _ in expected], abs=1e-3)
    assert len({round(value, 3) for value, _, _ in told}) > NEW_TOKENS // 2


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
    lines = verified_trees(ddtree)
    assert len(lines) > 500
    assert sum(line["accepted_draft_count"] for line in lines) > sum(
        line["chain_accepted_draft_count"] for line in lines
    )
    assert max(line["accepted_path_depth"] for line in lines) >= 4
