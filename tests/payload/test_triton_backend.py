"""DDTREE under SGLang's own Triton attention backend, run by the Triton interpreter."""

import pytest
from serving import DDTREE, assert_equal, verified_trees
from sglang_venv import PROMPTS

pytestmark = pytest.mark.sglang

PROMPT_COUNT, TOKENS = 2, 12


def test_ddtree_on_the_triton_backend_equals_no_speculation(start, reference):
    server = start(
        "ddtree on triton",
        [*DDTREE, "--attention-backend", "triton", "--speculative-ddtree-debug-metrics"],
        TRITON_INTERPRET="1",
    )
    answers = server.generate(PROMPTS[:PROMPT_COUNT], max_new_tokens=TOKENS)
    assert_equal("ddtree on triton", answers, reference.first(PROMPT_COUNT, TOKENS))
    lines = verified_trees(server)
    assert any(line["accepted_draft_count"] for line in lines)
    _, info = server.request("/server_info")
    assert info["attention_backend"] == "triton"
