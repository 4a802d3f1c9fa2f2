"""DDTREE with drafts that are always right, on real servers: whole blocks and sibling branches are accepted.

The half-trained draft is in ``test_server.py``.
"""

import json

import pytest
from serving import DDTREE, assert_equal, divergences, verified_trees
from sglang_venv import MODELS, PROMPTS, accept_length, output_ids

pytestmark = pytest.mark.sglang

OVERFITTED = ["--speculative-draft-model-path", str(MODELS / "draft_full")]


@pytest.fixture
def run(start, controls, reference):
    """Overfitted or oracle draft under forced retraction; verify can be broken from request to request."""
    folder, file = controls

    def run(prompts, *, oracle, broken=None):
        def set_controls(broken):
            file.write_text(json.dumps({"oracle": reference.tokens if oracle else None, "break": broken}))

        set_controls(None)  # a worker that is broken when it starts refuses to start
        # Broken KV must not outlive its case in the radix cache.
        server = start(
            "controls",
            [*DDTREE, *OVERFITTED, "--disable-radix-cache", "--speculative-ddtree-debug-metrics"],
            folder,
            DDTREE_CONTROLS=str(file),
            SGLANG_TEST_RETRACT="1",
        )
        set_controls(broken)
        before = server.log.stat().st_size
        return server.generate(prompts), verified_trees(server, before)

    return run


@pytest.mark.parametrize("oracle", [False, True], ids=["overfitted", "oracle"])
def test_ddtree_equals_no_speculation(run, reference, oracle):
    answers, lines = run(PROMPTS, oracle=oracle)
    name = "oracle" if oracle else "overfitted"
    assert_equal(f"ddtree, {name} draft", answers, reference)
    tree = accept_length(answers)
    chain = 1 + sum(line["chain_accepted_draft_count"] for line in lines) / len(lines)
    print(f"ddtree, {name} draft: accept length {tree:.3f}, the chain in the same trees {chain:.3f}")
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    if oracle:
        # The known continuation is at rank 0 and 1 in turn: the chain leaves it at once.
        assert tree > 3 and tree > chain + 1
    else:
        assert tree > 7


@pytest.mark.parametrize("broken", ["mask", "move"])
def test_a_broken_verify_changes_the_output(run, reference, broken):
    answers, _ = run(PROMPTS[:16], oracle=True, broken=broken)
    wrong, _ = divergences(output_ids(answers), reference.first(16))
    assert len(wrong) >= 8, f"{broken} left out, and only {len(wrong)} of 16 outputs changed"
