"""Two ranks over gloo: the tokens of one, the same trees on both, and no rows gathered for an argmax.

SGLang 0.5.22 does not hand the worker its logits processor: there verify gathers whole rows.
"""

import json
import re

import pytest
from serving import DDTREE, NEW_TOKENS, assert_equal, rows, verified_trees
from sglang_venv import PROMPTS, sglang_release

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("v2_only")]

VOCABULARY, RANKS = 512, 2


@pytest.fixture
def server(start, controls):
    folder, file = controls
    file.write_text(json.dumps({"oracle": None, "break": None}))
    return start(
        "ddtree on two ranks",
        [*DDTREE, "--tp-size", str(RANKS), "--speculative-ddtree-debug-metrics"],
        folder,
        DDTREE_CONTROLS=str(file),
        SGLANG_CPU_OMP_THREADS_BIND="|".join(["0"] * RANKS),  # or SGLang wants a NUMA node for each rank
    )


def columns(server, start):
    return set(
        re.findall(r"controls: (\d+) columns", server.log.read_bytes()[start:].decode(errors="replace"))
    )


def test_two_ranks_give_the_tokens_of_one(server, reference):
    before = server.log.stat().st_size
    answers = server.generate(PROMPTS)
    assert_equal("two ranks", answers, reference)
    assert len(verified_trees(server, before)) > 100  # "ranks built different trees" would be an error there
    width = VOCABULARY if sglang_release() == "0.5.22" else VOCABULARY // RANKS
    assert columns(server, before) == {str(width)}


def test_what_needs_whole_rows_gets_them(server, reference):
    """A bias is added to whole rows; the banned token is in none of these outputs, so they stay the same."""
    banned = next(t for t in range(1, VOCABULARY) if all(t not in row for row in reference.tokens[:8]))
    before = server.log.stat().st_size
    answers = server.generate(PROMPTS[:8], logit_bias={str(banned): -100.0})
    assert_equal("two ranks, logit bias", answers, reference.first(8))
    assert columns(server, before) == {str(VOCABULARY)}


def test_sampled_and_greedy_requests_share_a_batch(server, reference):
    def parameters(row):
        return {"temperature": row % 2 * 0.9, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}

    before = server.log.stat().st_size
    status, answers = server.request(
        "/generate", {"text": PROMPTS[:8], "sampling_params": [parameters(row) for row in range(8)]}
    )
    assert status == 200, answers
    assert_equal("two ranks, mixed batch", answers[::2], rows(reference, slice(0, 8, 2)))
    assert verified_trees(server, before)
