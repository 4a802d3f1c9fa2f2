"""A real server whose trees are built, compiled and walked by the Triton kernels, run by the interpreter."""

import pytest
from serving import DDTREE, assert_equal, verified_trees
from sglang_venv import PROMPTS

pytestmark = pytest.mark.sglang

PROMPT_COUNT, TOKENS = 4, 12  # the interpreter takes a second a step


def test_ddtree_by_the_kernels_equals_no_speculation(start, reference):
    arguments = [*DDTREE, "--speculative-ddtree-budget", "8", "--speculative-ddtree-debug-metrics"]
    server = start("kernels", arguments, TRITON_INTERPRET="1")
    assert "trees on the device" in server.log.read_text(errors="replace")
    answers = server.generate(PROMPTS[:PROMPT_COUNT], max_new_tokens=TOKENS)
    assert_equal("ddtree, kernels", answers, reference.first(PROMPT_COUNT, TOKENS))
    (sampled,) = server.generate(PROMPTS[:1], max_new_tokens=TOKENS, temperature=0.8, top_p=0.9)
    assert sampled["meta_info"]["completion_tokens"] == TOKENS
    lines = verified_trees(server)
    assert {line["actual_nodes"] for line in lines} == {8}
    assert any(line["branch_count"] and line["accepted_draft_count"] for line in lines)
