"""verify, bench, golden record, calibrate, hold, confirm: over real SSH, against the fake server's moods."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
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

BENCH = {"num_prompts": 4, "concurrency": 2, "output_len": 4, "rounds": 5, "min_round": "0s"}
VERIFY = {
    "schema": 1,
    "name": "verify",
    "action": "verify",
    "steps": [
        "lock",
        "stage",
        {"health": {"requests": 2, "need": 2, "max_new_tokens": 4, "deadline": "5s"}},
        "tokens",
        "acceptance",
        {"benchmark": {"prompts": "prompts.jsonl", "bench": {**BENCH, "rounds": 1}, "min_ratio": None}},
        {"soak": {"requests": 10, "concurrency": 2, "max_new_tokens": 4, "hang_after": "5s"}},
        "unlock",
    ],
}


@pytest.fixture
def serving(server: SshServer, tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path, server, port=free_port())
    (made.work / "playbooks" / "verify.yaml").write_text(yaml.safe_dump(VERIFY, sort_keys=False))
    made.serve()
    yield made
    made.close()


def edit(box: Box, change: Any) -> None:
    """Change the rollout's playbook."""
    file = box.work / "playbooks" / "rollout.yaml"
    playbook = yaml.safe_load(file.read_text())
    change(playbook)
    file.write_text(yaml.safe_dump(playbook, sort_keys=False))


def options(playbook: dict[str, Any], kind: str) -> dict[str, Any]:
    step: dict[str, Any] = next(s for s in playbook["steps"] if isinstance(s, dict) and kind in s)
    found: dict[str, Any] = step[kind]
    return found


def test_verify_compares_with_what_was_recorded_and_touches_nothing(serving: Box) -> None:
    before = serving.snapshot()
    nothing = serving.run("verify", "box")
    assert nothing.code == 7 and nothing.outcome["step"] == "tokens", nothing
    assert "no reference: ddtree-deploy golden record box" in nothing.outcome["reason"]
    recorded = serving.plain("golden", "record", "box")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert "with log-probs" in recorded.stdout and "model fake-model" in recorded.stdout
    done = serving.run("verify", "box")
    assert done.code == 0, done
    assert done.outcome["state"] == "nothing was changed"
    assert set(done.verdicts().values()) == {"pass"}
    # Killed by nobody, replaced by nobody, nothing installed.
    assert serving.algorithm() == "DFLASH" and differs(serving, before) == []
    measured = serving.run("bench", "box")
    assert measured.code == 0, measured
    assert measured.outcome["results"]["baseline"]["bench"]["figures"]["output_tokens_per_s"] > 0
    shown = serving.plain("show", "last", "--json")
    assert json.loads(shown.stdout)["action"] == "bench"

    golden = serving.work / ".ddtree-deploy" / "golden" / "box.json"
    data = json.loads(golden.read_text())
    data["identity"]["sglang"] = "0.5.11"
    other = serving.work / "other.json"
    other.write_text(json.dumps(data))
    foreign = serving.run("verify", "box", "--golden", str(other))
    assert foreign.code == 7, foreign
    assert "sglang: recorded '0.5.11', here '0.0.fake'" in foreign.outcome["reason"]


@pytest.mark.parametrize(
    ("mood", "step", "words"),
    [
        ({"hung": True}, "health", "no answer within"),
        ({"wrong_tokens": 2}, "tokens", "position 2: expected token"),
        ({"accept": 1.2}, "acceptance", "accept length 1."),
        ({"hang_after_requests": 25}, "soak", "it hangs"),
    ],
)
def test_each_mood_is_failed_by_the_gate_for_it(
    serving: Box, mood: dict[str, Any], step: str, words: str
) -> None:
    """case 16 among them: /health says 200 but generation hangs."""
    assert serving.plain("golden", "record", "box").returncode == 0
    if "hang_after_requests" in mood:  # counted from the server's start
        with_count = json.loads(_get(serving, "/fake"))["requests"] + 16
        mood = {"hang_after_requests": with_count}
    serving.moods(**mood)
    done = serving.run("verify", "box")
    assert done.code == 1 and done.outcome["step"] == step, done
    assert words in done.outcome["reason"]
    serving.moods()


def test_golden_record_tells_a_script_where_the_file_is(serving: Box) -> None:
    recorded = serving.run("golden", "record", "box", "-o", "kept.json")
    assert recorded.code == 0, recorded
    told = recorded.events[-1]
    assert (told["e"], told["host"], told["file"], told["refused"]) == ("golden", "box", "kept.json", "")
    assert json.loads((serving.work / "kept.json").read_text())["epsilon"] == told["epsilon"]


@pytest.mark.parametrize(
    ("dataset", "model", "code", "words"),
    [
        ("stories", "fake-model", 0, "accept length 3.000, baseline (a table) 3.000 (+0.0%, tolerance 3.0%)"),
        ("poems", "fake-model", 1, "accept length 3.000, baseline (a table) 3.500 (-14.3%, tolerance 3.0%)"),
        ("stories", "other-model", 7, "the baseline is for model other-model, here it is fake-model"),
    ],
)
def test_acceptance_against_figures_measured_elsewhere(
    serving: Box, dataset: str, model: str, code: int, words: str
) -> None:
    """The port is checked: what it accepts on the same prompts against a table, whatever ran before it."""
    table = serving.work / "table.csv"
    table.write_text("dataset,budget,accept_length\nstories,16,3.0\npoems,16,3.5\npoems,0,2.0\n")
    made = serving.plain(
        "baseline", "import", str(table), "--model", model, "--draft", "fake-draft",
        "--source", "a table", "-o", "playbooks/table.json",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    gate = {"acceptance": {"against": "table.json", "dataset": dataset, "max_new_tokens": 12}}

    def change(playbook: dict[str, Any]) -> None:
        playbook["steps"] = [gate if s == "acceptance" else s for s in playbook["steps"]]

    edit(serving, change)
    done = serving.run("rollout", "box", "--yes")
    assert done.code == code, done
    told = done.outcome["results"]["acceptance"]["acceptance"]["judged"]
    said = done.outcome["reason"] + json.dumps(told)
    assert words in said, said
    assert done.outcome["step"] == ("acceptance" if code else "")
    assert serving.algorithm() == ("DFLASH" if code else "DDTREE")


def _get(box: Box, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{box.port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_an_undecided_gate_holds_the_release_until_a_person_decides(serving: Box) -> None:
    """The fake server's speed is the machine's: against a bar that no interval clears it stays undecided."""

    def hold(playbook: dict[str, Any]) -> None:
        playbook["on_inconclusive"] = "hold"
        options(playbook, "baseline")["bench"] = BENCH
        # Without a calibration a pass is not to be had, however fast it is.
        options(playbook, "benchmark").update({"min_ratio": 0.001})

    edit(serving, hold)
    done = serving.run("rollout", "box", "--yes")
    assert done.code == 7 and done.outcome["state"].startswith("new release held"), done
    # The machine may be too busy for the calibration loop; that is said instead.
    undecided = (
        "not calibrated: the restart spread of this host is unknown|host changed|host not steady enough"
    )
    assert re.search(undecided, done.outcome["reason"]), done
    assert done.verdicts()["soak"] == "pass", "the gates after it are asked all the same"
    assert serving.algorithm() == "DDTREE"
    assert "held" in serving.plain("status", "box").stdout
    refused = serving.run("rollout", "box", "--yes", "--payload", serving.payload("next", version="0.2.0"))
    assert refused.code == 2 and "a person has to decide first" in refused.stderr, refused
    assert serving.run("confirm", "box").code == 0
    assert "good" in serving.plain("releases", "box").stdout
    again = serving.run("confirm", "box")
    assert again.code == 0 and "no release is held" in again.outcome["reason"], again


def test_calibrate_restarts_the_unchanged_service_and_the_benchmark_gate_knows_it(serving: Box) -> None:
    edit(serving, lambda p: options(p, "baseline").update({"bench": {**BENCH, "num_prompts": 2}}))
    few = serving.plain("calibrate", "box", "--restarts", "3", "--yes")
    assert few.returncode == 2 and "6 are needed" in few.stderr
    before, pid = serving.snapshot(), json.loads(_get(serving, "/fake"))["pid"]
    done = serving.run("calibrate", "box", "--yes")
    assert done.code == 0, done
    assert done.outcome["state"] == "as before"
    figures = done.outcome["results"]["calibrate"]
    assert figures["restarts"] == 6 and figures["sd"] > 0 and len(figures["blocks"]) == 6
    assert json.loads(_get(serving, "/fake"))["pid"] != pid
    assert serving.algorithm() == "DFLASH" and differs(serving, before) == []
    (file,) = serving.state.glob("sites/*/calibration.json")
    assert json.loads(file.read_text())["identity"]["model"] == "fake-model"
    edit(serving, lambda p: options(p, "benchmark").update({"min_ratio": 0.001}))
    rolled = serving.run("rollout", "box", "--yes")
    known = rolled.outcome["results"]["baseline"]["restart"]
    assert known["restarts"] == 6 and not known["assumed"] and "measured over 6 restarts" in known["source"]


def test_a_sweep_goes_on_where_it_was_ended_and_leaves_the_service_as_it_was(serving: Box) -> None:
    edit(serving, lambda p: options(p, "baseline").update({"bench": {**BENCH, "num_prompts": 2}}))
    words = ("sweep", "box", "--budgets", "4,8", "--passes", "1", "--rounds", "5", "--yes")
    before = serving.snapshot()
    running = serving.start(*words)
    running.until(
        lambda e: str(e.get("text", "")).startswith("arm 2 of 3 (pass 1, budget 4)"), "the second arm"
    )
    os.killpg(running.process.pid, signal.SIGINT)
    ended = running.finish()
    assert ended.code == 130, ended
    assert serving.algorithm() == "DFLASH", "restored"
    (kept,) = serving.state.glob("sites/*/sweep.json")
    assert [b["budget"] for b in json.loads(kept.read_text())["blocks"]] == [0]
    done = serving.plain(*words, "-o", "plots.html")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--speculative-ddtree-budget-schedule 1:" in done.stdout
    assert "measured by an earlier run" in "".join(
        p.read_text() for p in serving.work.glob(".ddtree-deploy/runs/*/journal.jsonl")
    )
    assert (serving.work / "plots.html").read_text().count("against the tree budget") >= 3
    assert serving.algorithm() == "DFLASH" and differs(serving, before) == []
    assert not kept.exists(), "the next sweep begins anew"
    argv = json.loads(_get(serving, "/fake"))["argv"]
    assert not [word for word in argv if "ddtree" in word]
