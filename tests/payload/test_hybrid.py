"""A hybrid target (gated delta net and attention): a recurrent state per tree node, committed with the path.

Its convolution and recurrence are SGLang's Triton kernels, run by the interpreter: few prompts, few tokens.
"""

import json
import re

import pytest
from serving import DDTREE, assert_equal, divergences, greedy_reference, verified_trees
from sglang_venv import MODELS, PROMPTS, accept_length, ensure_hybrid, output_ids

pytestmark = pytest.mark.sglang

PROMPT_COUNT, TOKENS = 4, 24
TARGET = ["--model-path", str(MODELS / "hybrid"), "--disable-radix-cache"]
HYBRID = [*TARGET, *DDTREE, "--speculative-ddtree-debug-metrics"]
UNSAFE = "--speculative-ddtree-allow-hybrid-unsafe"


@pytest.fixture(scope="module")
def hybrid_reference(payload, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid_reference")
    return greedy_reference(PROMPTS[:PROMPT_COUNT], TOKENS, folder, ensure_hybrid())


@pytest.fixture
def run(start, controls, hybrid_reference):
    """The oracle draft: sibling branches are accepted, so states are taken from branches."""
    folder, file = controls

    def run(name, broken=None):
        file.write_text(json.dumps({"oracle": hybrid_reference.tokens, "break": broken}))
        server = start(name, [*HYBRID, UNSAFE], folder, DDTREE_CONTROLS=str(file), TRITON_INTERPRET="1")
        return server, server.generate(PROMPTS[:PROMPT_COUNT], max_new_tokens=TOKENS)

    return run


def test_without_speculation_the_hybrid_equals_transformers(hybrid_reference, start):
    server = start("hybrid", TARGET, TRITON_INTERPRET="1")
    assert_equal("hybrid", server.generate(PROMPTS[:PROMPT_COUNT], max_new_tokens=TOKENS), hybrid_reference)


def test_ddtree_equals_it_and_tells_what_the_budget_costs(run, hybrid_reference):
    server, answers = run("hybrid ddtree")
    assert_equal("hybrid ddtree", answers, hybrid_reference)
    length = accept_length(answers)
    print(f"hybrid ddtree: accept length {length:.3f}")
    assert length > 3
    lines = verified_trees(server)
    assert any(line["accepted_draft_count"] > line["chain_accepted_draft_count"] for line in lines)
    told = re.search(r"states of tree nodes take ([\d.]+) MiB .* (\d+) nodes", server.log.read_text())
    assert told and float(told[1]) > 0 and told[2] == "17"


def test_a_backend_that_is_told_of_chains_gives_something_else(run, hybrid_reference):
    _, answers = run("hybrid ddtree, topk 1", broken="topk")
    wrong, _ = divergences(output_ids(answers), hybrid_reference)
    assert len(wrong) >= PROMPT_COUNT // 2
