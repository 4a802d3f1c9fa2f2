"""report, history, show, diff and baseline import, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from ddtree_deploy.commands import evidence
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.references import baselines

from . import samples


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a record of three runs, as the current one."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / ".ddtree-deploy" / "runs"
    samples.write_run(runs, "good")
    samples.write_run(runs, "slow", host="gpu2", sglang="0.5.22")
    samples.write_run(runs, "noisy")
    return tmp_path


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    evidence.register(made)
    return made


def call(app: typer.Typer, *words: str) -> None:
    app(list(words), prog_name="ddtree-deploy", standalone_mode=False)


def test_history(app: typer.Typer, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(app, "history")
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["run", "host", "action", "payload"]
    assert [row.split()[0] for row in rows] == sorted(
        p.name for p in (here / ".ddtree-deploy/runs").iterdir()
    )
    assert " ".join(rows[1].split()[1:]).startswith(
        "gpu2 rollout sglang-ddtree 0.1.0 (0.5.23) fail 1 benchmark as before"
    )
    call(app, "history", "gpu2", "--json")
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["host"], row["exit"], row["step"]) == ("gpu2", 1, "benchmark")
    call(app, "history", "nosuch")
    assert capsys.readouterr().out.startswith("no run on nosuch is recorded in ")


def test_show(app: typer.Typer, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(app, "show", "000001")
    out = " ".join(capsys.readouterr().out.split())
    for said in (
        "run 20261118T094639-000001: rollout of sglang-ddtree 0.1.0 on gpu2, by ada@laptop",
        "fail at benchmark: speed ratio 0.490",
        "the host was left: as before",
        "sglang 0.5.22, torch 2.13.0, 2 x NVIDIA H200 (143771 MiB)",
        "install pass 0.1 s 5 files in place, digests agree (undone)",
        "output_tokens_per_s 499.8 245.6",
    ):
        assert said in out
    call(app, "show", "000000")
    assert "without service: 3 min 07 s" in capsys.readouterr().out
    call(app, "show", "000001", "--json")
    assert json.loads(capsys.readouterr().out)["host"] == "gpu2"


def test_show_without_a_name_is_the_last_run(
    app: typer.Typer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(app, "show")
    assert "inconclusive at benchmark" in capsys.readouterr().out


def test_diff(app: typer.Typer, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(app, "diff", "000000", "000001")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["packages", "sglang", "0.5.23", "0.5.22"] in rows
    assert ["figures", "output_tokens_per_s", "after", "645.1", "245.6", "-61.9%"] in rows
    call(app, "diff", "000000", "000000")
    assert "differ in nothing but their time" in capsys.readouterr().out


def test_report_writes_one_file(app: typer.Typer, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(app, "report", "000000")
    assert capsys.readouterr().out.startswith("report-20261118T094638-000000.html: gpu1 rollout pass, ")
    assert (here / "report-20261118T094638-000000.html").read_text().startswith("<!doctype html>")
    call(app, "report", str(here / ".ddtree-deploy/runs/20261118T094639-000001"), "-o", "out.html")
    assert "gpu2" in (here / "out.html").read_text()
    with pytest.raises(InputError, match="cannot be written"):
        call(app, "report", "000000", "-o", "no/such/folder.html")


def test_a_wrong_run_names_the_way_to_the_right_ones(app: typer.Typer, here: Path) -> None:
    with pytest.raises(InputError) as caught:
        call(app, "show", "nosuch")
    assert caught.value.render().endswith("nothing was touched; next: ddtree-deploy history")
    assert caught.value.exit_code == 2


def test_the_record_beside_another_hosts_file(
    app: typer.Typer, here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(InputError, match="no run was recorded here yet"):
        call(app, "show")
    call(app, "show", "--hosts", str(here / "hosts.yaml"))


def test_baseline_import(app: typer.Typer, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("dataset,budget,accept_length\nGSM8K,64,9.1\n")
    about = ("--model", "Qwen/Qwen3-8B", "--draft", "D", "--source", "us")
    call(app, "baseline", "import", "t.csv", *about, "-o", "b.json")
    assert capsys.readouterr().out == "b.json: 1 figures for Qwen/Qwen3-8B with D\n"
    (found,) = baselines.load("b.json").entries
    assert (found.dataset, found.budget, found.accept_length) == ("GSM8K", 64, 9.1)
