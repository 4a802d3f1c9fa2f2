"""`verify` on a real SGLang: it passes DDTREE, and `tokens` fails what answers wrongly, however it does it.

DDTREE is broken while it serves: at its start the payload's self-check would refuse a wrong mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.need import lacking
from tests.sandbox.breakable import Breakable, missing

pytestmark = pytest.mark.sglang

HEALTH = {"health": {"requests": 2, "need": 2, "max_new_tokens": 8, "deadline": "2m"}}
BENCH = {"num_prompts": 8, "concurrency": 4, "output_len": 16, "rounds": 1, "min_round": "0s"}
BENCHMARK = {"benchmark": {"prompts": "prompts.jsonl", "bench": BENCH, "min_ratio": None}}
SOAK = {"soak": {"requests": 40, "concurrency": 4, "max_new_tokens": 8, "hang_after": "2m"}}
SPOT = re.compile(
    r"prompt \d+ \([\w-]+\), position (\d+): expected token (\d+) \(log-prob -[\d.]+\), got token (\d+)"
    r".*; gap [\d.]+ \(\d of 8 prompts differ\) \(DDTREE against the golden file of "
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Breakable]:
    """What the chain says is recorded; then DDTREE serves in its place."""
    if why := missing():
        lacking(why, "SGLANG")
    made = Breakable(tmp_path_factory.mktemp("gates"))
    try:
        made.up()
        made.run("golden", "record", "sandbox").expect(0)
        made.serve()
        yield made
    finally:
        made.down()


def verify(host: Breakable, *gates: object) -> str:
    return host.playbook("judge", "verify", ["lock", "stage", *gates, "unlock"])


def test_verify_passes_ddtree_through_every_gate(host: Breakable) -> None:
    book = verify(host, HEALTH, "tokens", {"acceptance": {"max_steps_ratio": 1.0}}, BENCHMARK, SOAK)
    done = host.run("verify", "sandbox", "--playbook", book).expect(0)
    assert set(done.verdicts().values()) == {"pass"}
    results = done.outcome["results"]
    assert results["tokens"]["speculative"] == "DDTREE"
    assert results["tokens"]["agreement"]["equal"] == results["tokens"]["agreement"]["prompts"] == 8
    steps, length = results["acceptance"]["acceptance"]["judged"]
    assert steps["against"].startswith("DFLASH of the golden file")
    assert steps["value"] < 0.95 * steps["expected"] and length["value"] > length["expected"]


@pytest.mark.parametrize("fault", ["mask", "move"])
def test_a_causal_mask_or_a_skipped_kv_move_fails_tokens_by_name_of_the_position(
    host: Breakable, fault: str
) -> None:
    host.behave(fault)
    try:
        done = host.run("verify", "sandbox", "--playbook", verify(host, HEALTH, "tokens", SOAK))
    finally:
        host.behave()
    done.expect(1, "tokens")
    spot = SPOT.search(done.outcome["reason"])
    assert spot, done.outcome["reason"]
    assert int(spot[1]) > 0 and spot[2] != spot[3], "the first token comes from the prefill"
    assert done.verdicts()["health"] == "pass", "a server that only answers is not enough"


def test_a_server_that_is_fast_because_it_answers_wrongly_fails_tokens_and_nothing_else(
    host: Breakable,
) -> None:
    """It takes the draft's word: fewer steps than an honest server can have, and every other gate is glad."""
    host.behave("trust")
    try:
        rest = host.run("verify", "sandbox", "--playbook", verify(host, HEALTH, "acceptance", SOAK))
        done = host.run("verify", "sandbox", "--playbook", verify(host, HEALTH, "tokens", SOAK))
    finally:
        host.behave()
    rest.expect(0)
    steps, _ = rest.outcome["results"]["acceptance"]["acceptance"]["judged"]
    assert steps["value"] < 0.65 * steps["expected"], "the sound tree needs three quarters of the chain's"
    done.expect(1, "tokens")
    assert SPOT.search(done.outcome["reason"]), done.outcome["reason"]
    again = host.run("verify", "sandbox", "--playbook", verify(host, HEALTH, "tokens"))
    assert "8 answers equal token for token" in str(again.expect(0).events)
