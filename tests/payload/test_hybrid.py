"""A hybrid target (gated delta net and attention): a recurrent state per tree node, committed with the path.

Its convolution and recurrence are SGLang's Triton kernels, run by the interpreter: few prompts, few tokens.
"""

import json
import re

import pytest
from serving import DDTREE, assert_equal, divergences, greedy_reference, verified_trees
from sglang_venv import MODELS, PROMPTS, accept_length, ensure_hybrid, output_ids

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("v2_only")]

PROMPT_COUNT, TOKENS, BUDGET = 2, 12, 12
TARGET = ["--model-path", str(MODELS / "hybrid"), "--disable-radix-cache", "--skip-server-warmup"]
HYBRID = [
    *(*TARGET, *DDTREE, "--speculative-ddtree-budget", str(BUDGET), "--speculative-ddtree-debug-metrics"),
    "--speculative-ddtree-allow-hybrid-unsafe",
]
# SGLang would keep convolution windows in bfloat16, which in a float32 model routes tokens to other experts.
EXACT = {"TRITON_INTERPRET": "1", "SGLANG_MAMBA_CONV_DTYPE": "float32"}


@pytest.fixture(scope="module")
def hybrid_reference(payload, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid_reference")
    return greedy_reference(PROMPTS[:PROMPT_COUNT], TOKENS, folder, ensure_hybrid())


@pytest.fixture
def run(start, controls, hybrid_reference):
    """The oracle draft: sibling branches are accepted, so states are taken from branches."""
    folder, file = controls

    def run(name, tokens=TOKENS, broken=None):
        file.write_text(json.dumps({"oracle": hybrid_reference.tokens, "break": broken}))
        server = start(name, HYBRID, folder, DDTREE_CONTROLS=str(file), **EXACT)
        return server, server.generate(PROMPTS[:PROMPT_COUNT], max_new_tokens=tokens)

    return run


def test_without_speculation_the_hybrid_equals_transformers(hybrid_reference, start):
    server = start("hybrid", TARGET, **EXACT)
    answers = server.generate(PROMPTS[:PROMPT_COUNT], max_new_tokens=TOKENS)
    assert_equal("hybrid", answers, hybrid_reference)


def test_ddtree_equals_it_and_tells_what_the_budget_costs(run, hybrid_reference):
    server, answers = run("hybrid ddtree")
    assert_equal("hybrid ddtree", answers, hybrid_reference)
    lines = verified_trees(server)
    chain = 1 + sum(line["chain_accepted_draft_count"] for line in lines) / len(lines)
    length = accept_length(answers)
    print(f"hybrid ddtree: accept length {length:.3f}, the chain in the same trees {chain:.3f}")
    assert length > chain + 1
    log = server.log.read_text(errors="replace")
    told = re.search(r"states of tree nodes take ([\d.]+) MiB \(\d+ requests of (\d+) nodes\)", log)
    assert told and float(told[1]) > 0 and int(told[2]) == BUDGET + 1
    checked = re.search(r"self-check passed .*HybridLinearAttnBackend.*largest difference (\S+) .*", log)
    print(checked[0])
    assert float(checked[1]) < 1e-4 and "but for" not in checked[0]


def test_a_backend_that_is_told_of_chains_gives_something_else_and_the_self_check_sees_it(
    run, hybrid_reference
):
    server, answers = run("hybrid ddtree, topk 1", tokens=6, broken="topk")
    wrong, _ = divergences(output_ids(answers), hybrid_reference.first(PROMPT_COUNT, 6))
    assert len(wrong) == PROMPT_COUNT
    refused = re.search(
        r"controls: started all the same: .*self-check failed.*differ from those of its path alone by (\S+)",
        server.log.read_text(errors="replace"),
    )
    assert refused and float(refused[1]) > 0.1
