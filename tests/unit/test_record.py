"""What the controller keeps of a run, and the zipapp that it sends."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.console import PlainView
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.protocol import PROTOCOL, FactsRequest, Plan, StepSpec
from ddtree_deploy.planning.changes import ChangeSet
from ddtree_deploy.running import local_step, zipapp
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.record import Last, Record
from ddtree_deploy.running.rollout import Emitter, Session, completed


def changes() -> ChangeSet:
    return ChangeSet("ct1", "rollout", "p 1", "0.5.23", "/v/bin/python", "", "", (), "", (), (), ())


def plan() -> Plan:
    texts = {f.name: "x" for f in dataclasses.fields(Plan) if f.type == "str"}
    more = {"targets": [], "steps": [StepSpec("lock", "lock", 1.0)], "secrets": {"api_key": "sk-secret"}}
    return Plan(**{"protocol": PROTOCOL, **texts, **more})


def test_the_plan_is_kept_without_its_secrets(tmp_path: Path) -> None:
    record = Record(tmp_path / "hosts.yaml").run("r1")
    record.plan(plan())
    text = (record.folder / "plan.json").read_text()
    assert "sk-secret" not in text and json.loads(text)["secrets"] == {"api_key": "***"}


def test_events_are_kept_as_they_come_and_the_folder_is_ours_alone(tmp_path: Path) -> None:
    record = Record(tmp_path / "hosts.yaml").run("r1")
    record.event({"n": 1, "e": "run"})
    assert (
        record.folder / "journal.jsonl"
    ).read_text() == '{"n":1,"e":"run"}\n'  # without waiting for the end
    record.summary({"exit_code": 0})
    assert json.loads((record.folder / "summary.json").read_text()) == {"exit_code": 0}
    assert (tmp_path / ".ddtree-deploy").stat().st_mode & 0o077 == 0
    assert (tmp_path / ".ddtree-deploy" / ".gitignore").read_text() == "*\n"


def test_a_run_whose_end_was_not_seen_is_found_and_its_record_completed(tmp_path: Path) -> None:
    record = Record(tmp_path / "hosts.yaml")
    for run, host in (("r1", "ct1"), ("r2", "ct1"), ("r3", "other")):
        begun = record.run(run)
        begun.plan(dataclasses.replace(plan(), host=host))
        begun.event({"n": 1, "e": "run"})
    assert record.newest("ct1") == "r2" and record.newest("nobody") == ""
    folder = tmp_path / ".ddtree-deploy" / "runs" / "r2"
    lost = record.resume("r2")
    assert lost is not None
    lost.event({"n": 1, "e": "run"})
    lost.summary({"exit_code": 8})  # again not to the end: the journal that there is stays
    assert sorted(p.name for p in folder.iterdir()) == ["journal.jsonl", "plan.json"]
    again = record.resume("r2")
    assert again is not None
    again.event({"n": 1, "e": "run"})
    again.event({"n": 2, "e": "end"})
    again.summary({"exit_code": 0})
    assert len((folder / "journal.jsonl").read_text().splitlines()) == 2
    assert record.resume("r2") is None and record.resume("not-from-here") is None


def test_the_last_rollout_is_remembered(tmp_path: Path) -> None:
    record = Record(tmp_path / "hosts.yaml")
    last = Last("2026-11-29T17:45:01+00:00", "all", {"b": "r2", "a": "r1"})
    record.set_last(last)
    assert record.last() == last and list(record.last().runs) == ["b", "a"]


class Disk:
    """A file on a disk that tells of its want of space at one call: NFS does when the file is closed."""

    def __init__(self, at: str) -> None:
        self.at = at

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> None:
            if name == self.at:
                raise OSError(28, "No space left on device")

        return call


@pytest.mark.parametrize("at", ["write", "flush", "close"])
def test_a_disk_that_is_full_at_any_call_costs_the_record_only(
    tmp_path: Path, at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emit = Emitter(PlainView(io.StringIO()), "ct1")
    emit.run, emit.launched = "r1", True
    emit.record = begun = Record(tmp_path / "hosts.yaml").run("r1")
    begun.plan(plan())
    begun._journal = Disk(at)  # type: ignore[assignment]
    emit({"n": 1, "e": "run"})
    session = Session(Host("ct1", "10.0.0.1", "/v/bin/python"), emit)
    outcome = completed(Outcome("ct1", "rollout", 0), emit, session, time.monotonic())
    assert outcome.exit_code == 0 and not (begun.folder / "summary.json").exists()
    assert capsys.readouterr().err == (
        "ddtree-deploy: ct1: the record of run r1 here is incomplete: No space left on device; the whole is "
        "on the host; next: ddtree-deploy attach ct1\n"
    )
    assert Record(tmp_path / "hosts.yaml").resume("r1") is not None


def test_a_resumed_record_that_cannot_be_completed_leaves_what_there_was(tmp_path: Path) -> None:
    record = Record(tmp_path / "hosts.yaml")
    begun = record.run("r1")
    begun.plan(plan())
    begun.event({"n": 1, "e": "run"})
    again = record.resume("r1")
    assert again is not None
    again.event({"n": 1, "e": "run"})
    again.abandon()
    assert sorted(p.name for p in begun.folder.iterdir()) == ["journal.jsonl", "plan.json"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"odd": 1}'])
def test_a_damaged_record_is_bad_input(tmp_path: Path, text: str) -> None:
    record = Record(tmp_path / "hosts.yaml")
    record.set_last(Last("t", "x", {}))
    (record.folder / "last.json").write_text(text)
    with pytest.raises(InputError, match="cannot be read"):
        record.last()


# ---- the zipapp ------------------------------------------------------------------------------------------


def test_equal_sources_give_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = zipapp.archive()
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert zipapp.archive.__wrapped__() == first, "made anew, not the one that is kept"


def test_the_zipapp_holds_only_the_host_s_package() -> None:
    names = zipfile.ZipFile(io.BytesIO(zipapp.archive())).namelist()
    assert "__main__.py" in names and "onhost/run/runner.py" in names
    assert all(n == "__main__.py" or n.startswith("onhost/") for n in names)
    assert not [n for n in names if "__pycache__" in n or "fault" in n]


@pytest.mark.starts
def test_the_zipapp_runs_isolated_without_site_packages(tmp_path: Path) -> None:
    file = tmp_path / "runner.pyz"
    file.write_bytes(zipapp.archive())
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(file), "odd"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "usage" in done.stderr


@pytest.mark.starts
def test_the_facts_script_runs_from_stdin_and_leaves_no_file(tmp_path: Path) -> None:
    request = FactsRequest(protocol=PROTOCOL, state_dir=str(tmp_path / "state"), refs=["site:x.py"])
    before = sorted(p.name for p in tmp_path.iterdir())
    program = zipapp.facts_program(request)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program.code],
        input=program.request + program.sources,
        capture_output=True,
        timeout=120,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert b"DDTREE-FACTS " in done.stdout, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (b"x = 1\n", ""),
        (b"def f(:\n", "m.py:1: invalid syntax"),
        (b"x = 1\n\n  y = 2\n", "m.py:3: unexpected indent"),
        (b"a\0b", "null bytes"),
        (b"# -*- coding: odd -*-\n", "unknown encoding: odd"),
    ],
)
def test_a_source_that_does_not_compile_is_named_with_its_line(source: bytes, problem: str) -> None:
    found = local_step.syntax_problem("m.py", source)
    assert (problem in found) if problem else (found == "")
