"""The evidence bundle: shape by schema, damage by name, secrets nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.report import bundle, history

from . import samples

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "docs" / "schema" / "bundle-1.json"
SCHEMA = json.loads(SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def step(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in found["steps"] if s["name"] == name)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", samples.KINDS)
def test_bundles_fit_the_published_schema(tmp_path: Path, kind: str) -> None:
    found = bundle.load(samples.write_run(tmp_path, kind))
    VALIDATOR.validate(found)
    VALIDATOR.validate(json.loads(json.dumps(found)))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"verdict": "fine"},
        {"extra": 1},
        {"steps": [{"name": "x"}]},
        {"fingerprint": {"hostname": "x"}},
        {"measurements": {"before": None}},
    ],
)
def test_the_schema_refuses_what_is_no_bundle(tmp_path: Path, change: dict[str, Any]) -> None:
    found = bundle.load(samples.write_run(tmp_path, "good"))
    assert not VALIDATOR.is_valid({**found, **change})


def test_a_run_whose_record_is_only_a_plan_fits_too(tmp_path: Path) -> None:
    folder = samples.write_run(tmp_path, "good")
    for name in ("facts.json", "journal.jsonl", "summary.json"):
        (folder / name).unlink()
    found = bundle.load(folder)
    VALIDATOR.validate(found)
    assert found["verdict"] == "unknown"
    assert found["state"] == "nothing was changed"
    assert found["warnings"] == [
        "summary.json is missing",
        "facts.json is missing",
        "journal.jsonl is missing",
    ]


def test_a_passed_run(tmp_path: Path) -> None:
    found = bundle.load(samples.write_run(tmp_path, "good"))
    assert (found["verdict"], found["exit"], found["state"]) == ("pass", 0, "new release serving")
    assert {s["verdict"] for s in found["steps"]} == {"pass"}
    assert found["measurements"]["before"]["algorithm"] == "DFLASH"
    assert found["measurements"]["after"]["algorithm"] == "DDTREE"
    assert found["measurements"]["speed"]["ratio"] == pytest.approx(646 / 500, rel=0.02)
    assert found["down_s"] == 187.5
    assert found["traffic"] == {"execs": 2, "sent": 96_412, "received": 61_230}
    assert found["warnings"] == []


def test_a_failed_gate_shows_what_never_ran_and_what_was_undone(tmp_path: Path) -> None:
    found = bundle.load(samples.write_run(tmp_path, "slow"))
    assert (found["verdict"], found["exit"], found["step"]) == ("fail", 1, "benchmark")
    assert found["down_s"] is None, "its journal is one of an older release"
    assert step(found, "soak")["verdict"] == "not run"
    assert step(found, "install")["undo"] == {"phase": "done", "what": "undo", "reason": ""}


def test_contact_lost_is_unknown_not_a_pass(tmp_path: Path) -> None:
    found = bundle.load(samples.write_run(tmp_path, "lost"))
    assert (found["verdict"], found["exit"], found["state"]) == ("unknown", None, "unknown")
    assert step(found, "start")["verdict"] == "unfinished"
    assert "the journal has no end: contact was lost, or the run goes on" in found["warnings"]


def test_control_characters_of_the_host_are_shown_not_obeyed(tmp_path: Path) -> None:
    found = bundle.load(samples.write_run(tmp_path, "lost"))
    assert step(found, "start")["log"] == ["loading weights: 41 %|\\x1b[31mred\\x1b[0m"]
    tail = step(found, "baseline")["commands"][0]["tail"]
    assert tail == ["100%|##########| 300/300", "\\x1b[32mdone\\x1b[0m"]
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)


def test_secrets_of_an_unmasked_plan_stay_out(tmp_path: Path) -> None:
    folder = samples.write_run(tmp_path, "good")
    plan = json.loads((folder / "plan.json").read_text())
    plan["secrets"] = {"api_key": "hunter2-never-shown"}
    (folder / "plan.json").write_text(json.dumps(plan))
    assert "hunter2" not in json.dumps(bundle.load(folder))


def test_a_torn_last_line_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    folder = samples.write_run(tmp_path, "good")
    journal = folder / "journal.jsonl"
    rows = journal.read_text().splitlines()
    journal.write_text("\n".join([*rows[:-1], rows[-1][:30]]))
    found = bundle.load(folder)
    assert "the journal's last line is torn" in found["warnings"]
    assert found["verdict"] == "pass"  # the summary has it


def test_events_that_came_twice_count_once(tmp_path: Path) -> None:
    folder = samples.write_run(tmp_path, "good")
    once = bundle.load(folder)
    journal = folder / "journal.jsonl"
    rows = journal.read_text().splitlines()
    journal.write_text("\n".join([*rows[:20], *rows[10:]]) + "\n")
    assert bundle.load(folder) == once


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("plan.json", '{\n"run": \n', "plan.json:3: evidence: not valid JSON"),
        ("summary.json", "[1]", "summary.json:1: evidence: expected a JSON object"),
        (
            "journal.jsonl",
            '{"n": 1, "e": "run"}\nrubbish\n{"n": 3, "e": "end"}\n',
            "journal.jsonl:2: evidence: not a",
        ),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = samples.write_run(tmp_path, "good")
    (folder / name).write_text(text)
    with pytest.raises(InputError) as caught:
        bundle.load(folder)
    assert caught.value.render().startswith(str(folder / message))
    assert history.rows(tmp_path)[0].verdict == "unreadable"


def test_runs_are_found_by_id_beginning_end_and_last(tmp_path: Path) -> None:
    for kind in ("good", "slow", "wrong"):
        samples.write_run(tmp_path, kind)
    assert bundle.find(tmp_path, "last").name == "20261118T094640-000002"
    assert bundle.find(tmp_path, "000001").name == "20261118T094639-000001"
    assert bundle.find(tmp_path, "20261118T094638").name == "20261118T094638-000000"
    with pytest.raises(InputError, match="3 runs match '2026'"):
        bundle.find(tmp_path, "2026")
    with pytest.raises(InputError, match="there is no run 'nosuch'"):
        bundle.find(tmp_path, "nosuch")
    with pytest.raises(InputError, match="no run was recorded here yet"):
        bundle.find(tmp_path / "empty", "last")


def test_history_lists_runs_in_order_and_by_host(tmp_path: Path) -> None:
    samples.write_run(tmp_path, "good")
    samples.write_run(tmp_path, "slow", host="gpu2")
    rows = history.rows(tmp_path)
    assert [(r.host, r.verdict, r.exit, r.step) for r in rows] == [
        ("gpu1", "pass", 0, ""),
        ("gpu2", "fail", 1, "benchmark"),
    ]
    assert [r.host for r in history.rows(tmp_path, "gpu2")] == ["gpu2"]
    assert history.rows(tmp_path / "none") == []
