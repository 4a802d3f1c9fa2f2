"""A rollout whose new server is ill: undone by the gate for it, in words that name the illness."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtree_deploy.sandbox.sshd import SshServer
from tests.ports import free_port
from tests.ssh.box import Box, differs
from tests.ssh.one_flavour import server

__all__ = ["server"]

pytestmark = pytest.mark.ssh

Steps = list[Any]
MANY = 300


@pytest.fixture
def serving(server: SshServer, tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path, server, port=free_port())
    hosts = made.work / "hosts.yaml"
    data = yaml.safe_load(hosts.read_text())
    data["hosts"]["box"]["service"]["start"]["stalled_after"] = "5s"
    hosts.write_text(yaml.safe_dump(data, sort_keys=False))
    rows = [{"conversations": [{"content": f"prompt number {i}"}, {"content": "-"}]} for i in range(MANY)]
    (made.work / "playbooks" / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    made.serve()
    yield made
    made.close()


def kind(step: Any) -> str:
    return step if isinstance(step, str) else str(next(iter(step)))


def as_shipped(steps: Steps) -> Steps:
    return steps


def long_soak(steps: Steps) -> Steps:
    soak = {"requests": 80, "concurrency": 2, "max_new_tokens": 4, "hang_after": "5s"}
    return [{"soak": soak} if kind(s) == "soak" else s for s in steps]


def many_requests(steps: Steps) -> Steps:
    bench = {"num_prompts": MANY, "concurrency": 8, "output_len": 4, "rounds": 1, "min_round": "0s"}
    baseline = {"baseline": {"prompts": "prompts.jsonl", "tokens": 2, "max_new_tokens": 8, "bench": bench}}
    return [baseline if kind(s) == "baseline" else s for s in steps]


def no_soak(steps: Steps) -> Steps:
    """Nothing that takes time comes after the start; the last look comes late enough."""
    left = [s for s in steps if kind(s) not in ("baseline", "tokens", "acceptance", "benchmark", "soak")]
    return [{"unlock": {"settle": "60s"}} if kind(s) == "unlock" else s for s in left]


@dataclass(frozen=True)
class Ill:
    mood: dict[str, Any]
    steps: Callable[[Steps], Steps]
    gates: tuple[str, ...]
    words: str


ILLNESSES = {
    "healthy but hung": Ill({"hung": True}, as_shipped, ("start",), "no progress for 5 s"),
    "hangs after 50 requests": Ill({"hang_after_requests": 50}, long_soak, ("soak",), "of 80: it hangs: "),
    "160 of 300 succeed": Ill(
        {"fail_matching": r"number (1[6-9]|2\d)\d$"},
        many_requests,
        ("benchmark",),
        "round 1: 160 of 300 requests completed",
    ),
    # Where the machine is busy the five seconds may be over by `health`.
    "crashes after 5 s": Ill(
        {"crash_after_s": 5.0},
        no_soak,
        ("health", "unlock"),
        "the service is down: it ended with exit status 1",
    ),
}


@pytest.mark.parametrize("name", ILLNESSES)
def test_an_ill_server_is_undone_by_the_gate_for_its_illness(serving: Box, name: str) -> None:
    ill = ILLNESSES[name]
    file = serving.work / "playbooks" / "rollout.yaml"
    book = yaml.safe_load(file.read_text())
    book["steps"] = ill.steps(book["steps"])
    file.write_text(yaml.safe_dump(book, sort_keys=False))
    serving.moods(when={"DDTREE": ill.mood})
    before = serving.snapshot()
    done = serving.run("rollout", "box", "--yes")
    assert done.code == 1 and done.outcome["state"] == "as before", done
    assert done.outcome["step"] in ill.gates, done
    assert ill.words in done.outcome["reason"], done.outcome["reason"]
    assert serving.algorithm() == "DFLASH" and differs(serving, before) == []
