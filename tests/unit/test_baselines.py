"""Baseline files: strict loading, import from tables, and how a port is compared with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.references import baselines
from ddtree_deploy.inputs.references.baselines import Baseline
from ddtree_deploy.onhost.judge import expected
from ddtree_deploy.onhost.judge.expected import Measured
from ddtree_deploy.onhost.judge.verdict import Verdict

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "baselines").glob("*.json"))
HEAD = '{\n "format": 1,\n "model": "Qwen/Qwen3-8B",\n "draft": "z-lab/D",\n "source": "us",\n "entries": [\n'
HUGE = "9" * 400  # no float holds it
IDENTITY = {"model": "Qwen/Qwen3-8B", "draft": "z-lab/D", "source": "us"}


def write(folder: Path, *entries: str, head: str = HEAD) -> Path:
    path = folder / "b.json"
    path.write_text(head + ",\n".join("  " + e for e in entries) + "\n ]\n}\n")
    return path


CHAIN = '{"dataset": "GSM8K", "budget": 0, "accept_length": 6.57}'
TREE = '{"dataset": "GSM8K", "budget": 64, "accept_length": 9.0, "steps_per_token": 0.111}'


def measured(value: float, **changes: object) -> Measured:
    fields = {"model": "Qwen/Qwen3-8B", "draft": "z-lab/D", "dataset": "gsm-8k", "budget": 64}
    return Measured(**{**fields, "accept_length": value, **changes})  # type: ignore[arg-type]


def compare(measured: Measured, baseline: Baseline) -> Verdict:
    """As the gate on the host judges it."""
    return expected.compare(measured, baseline.model_dump())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_baselines_load(path: Path) -> None:
    found = baselines.load(path)
    assert len(found.entries) == 40
    for entry in found.entries:
        if entry.budget is None:  # the tree is never worse than the chain of the same data set
            here = [
                e for e in found.entries if (e.dataset, e.temperature) == (entry.dataset, entry.temperature)
            ]
            (chain,) = (e for e in here if e.budget == 0)
            assert entry.accept_length > chain.accept_length


def test_there_are_shipped_baselines() -> None:
    assert len(SHIPPED) == 3


@pytest.mark.parametrize(
    ("entry", "line", "message"),
    [
        (
            '{"dataset": "x", "budget": 1, "accept_lenght": 2.0}',
            8,
            "entries[1].accept_lenght: unknown key 'accept_lenght'; did you mean 'accept_length'?",
        ),
        ('{"dataset": "x", "budget": "1", "accept_length": 2}', 8, "entries[1].budget: expected "),
        ('{"dataset": "x", "accept_length": 2}', 8, "entries[1]: give either budget or best_of"),
        ('{"dataset": "x", "budget": 1, "best_of": [2], "accept_length": 2}', 8, "either budget or"),
        ('{"dataset": "x", "budget": 1, "accept_length": 0.5}', 8, "greater than or equal to 1, got 0.5"),
        ('{"dataset": "gsm-8k", "budget": 0, "accept_length": 2}', 8, "budget as entries[0]"),
        ('{"dataset": "x", "dataset": "y", "budget": 0, "accept_length": 2}', 8, "duplicate key 'dataset'"),
        ("{broken}", 8, "not valid JSON"),
    ],
)
def test_bad_entries_are_refused_with_their_line(tmp_path: Path, entry: str, line: int, message: str) -> None:
    path = write(tmp_path, CHAIN, entry)
    with pytest.raises(InputError) as caught:
        baselines.load(path)
    text = caught.value.render()
    assert text.startswith(f"{path}:{line}: ")
    assert message in text


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, CHAIN, head=HEAD.replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="format 2 is not known here, 1 is"):
        baselines.load(path)


def test_a_port_that_reaches_the_figures_passes(tmp_path: Path) -> None:
    baseline = baselines.load(write(tmp_path, CHAIN, TREE))
    good = compare(measured(8.9, steps_per_token=0.1124, model="/models/qwen3-8b"), baseline)
    assert good.verdict == "pass"
    assert "accept length 8.900, baseline (us) 9.000 (-1.1%, tolerance 3.0%)" in good.reason


def test_a_port_that_accepts_less_or_steps_more_fails(tmp_path: Path) -> None:
    baseline = baselines.load(write(tmp_path, CHAIN, TREE))
    assert compare(measured(8.0), baseline).verdict == "fail"
    steps = compare(measured(9.0, steps_per_token=0.2), baseline)
    assert steps.verdict == "fail"
    assert steps.reason.startswith("verify steps per token 0.200")


def test_an_entry_without_steps_per_token_judges_the_accept_length_alone(tmp_path: Path) -> None:
    """As all that are shipped."""
    baseline = baselines.load(write(tmp_path, CHAIN, TREE))
    chain = compare(measured(6.6, budget=0, steps_per_token=0.5), baseline)
    assert (chain.verdict, len(chain.figures["judged"])) == ("pass", 1)
    tree = compare(measured(9.0, steps_per_token=None), baseline)
    assert (tree.verdict, len(tree.figures["judged"])) == ("pass", 1)
    both = compare(measured(9.0, steps_per_token=0.111), baseline)
    assert (both.verdict, len(both.figures["judged"])) == ("pass", 2)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B", "/models/Qwen3-8B/", "qwen3-8b//", "/a/b/QWEN3-8B", "Qwen3-8B"]
)
def test_a_model_is_known_by_the_last_part_of_its_path(tmp_path: Path, name: str) -> None:
    baseline = baselines.load(write(tmp_path, TREE))
    assert compare(measured(9.0, model=name), baseline).verdict == "pass"
    assert compare(measured(9.0, model=f"{name}/other"), baseline).verdict == "inconclusive"


def test_what_the_baseline_does_not_hold_is_inconclusive(tmp_path: Path) -> None:
    best = '{"dataset": "GSM8K", "best_of": [16, 32], "accept_length": 9.5}'
    baseline = baselines.load(write(tmp_path, TREE, CHAIN, best))
    other = compare(measured(9.0, budget=32), baseline)
    assert other.verdict == "inconclusive"
    assert other.reason == (
        "the baseline has no figure for gsm-8k at budget 32, temperature 0; "
        "it has chain 6.57, budget 64 9, best of 16, 32 9.5"
    )
    wrong = compare(measured(9.0, model="Qwen/Qwen3-4B"), baseline)
    assert wrong.reason == "the baseline is for model Qwen/Qwen3-8B, here it is Qwen/Qwen3-4B"
    assert compare(measured(9.0, temperature=1.0), baseline).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("info", "budget"),
    [
        ({"speculative_algorithm": "DDTREE", "speculative_ddtree_budget": 32}, 32),
        ({"speculative_algorithm": "ddtree", "speculative_ddtree_budget": "16"}, 16),
        ({"speculative_algorithm": "DDTREE", "speculative_num_draft_tokens": 33}, 32),
        ({"speculative_algorithm": "DDTREE", "speculative_ddtree_budget": None}, 0),
        ({"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 8}, 0),
        ({"speculative_algorithm": None}, 0),
        ({}, 0),
    ],
)
def test_the_budget_is_what_the_server_was_started_with(info: dict[str, object], budget: int) -> None:
    assert expected.budget_of(info) == budget


def test_import_from_csv(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "# our own figures\ndataset,budget,accept_length,steps_per_token\nGSM8K,0,6.5,\nGSM8K, 64 ,9,0.11\n"
    )
    data = baselines.import_table(table, **IDENTITY, note="by hand")
    out = tmp_path / "out.json"
    written = baselines.dump(data, out)
    assert written == baselines.load(out)
    assert [e.arm for e in written.entries] == ["chain", "budget 64"]
    assert written.entries[1].steps_per_token == 0.11
    assert written.note == "by hand"


def test_import_from_json(tmp_path: Path) -> None:
    table = tmp_path / "t.json"
    table.write_text(json.dumps([{"dataset": "x", "budget": 8, "accept_length": 3.5, "temperature": 1.0}]))
    entry = baselines.dump(baselines.import_table(table, **IDENTITY), tmp_path / "o.json").entries[0]
    assert (entry.dataset, entry.budget, entry.temperature, entry.accept_length) == ("x", 8, 1.0, 3.5)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("dataset,budget\nx,1\n", 1, "missing column 'accept_length'"),
        ("dataset,budgets,accept_length\nx,1,2\n", 1, "unknown column 'budgets'; did you mean 'budget'?"),
        ("dataset,budget,accept_length\nx,1,2\nx,2\n", 3, "2 cells, the header has 3"),
        ("dataset,budget,accept_length\nx,1.5,2\n", 2, "budget: expected a whole number, got '1.5'"),
        ("dataset,budget,accept_length\nx,1,fast\n", 2, "accept_length: expected a number, got 'fast'"),
        ("dataset,budget,accept_length\n\nx,,2\n", 3, "budget: nothing here"),
        ("dataset,budget,accept_length\nx,1,inf\n", 2, "accept_length: expected a number, got 'inf'"),
        (f"dataset,budget,accept_length\nx,{HUGE},2\n", 2, f"budget: expected a whole number, got '{HUGE}'"),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    table = tmp_path / "t.csv"
    table.write_text(text)
    with pytest.raises(InputError) as caught:
        baselines.import_table(table, **IDENTITY)
    assert caught.value.render() == f"{table}:{line}: {message}; nothing was touched"


def test_an_impossible_figure_leaves_no_file(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("dataset,budget,accept_length\nx,1,0.2\n")
    with pytest.raises(InputError, match="greater than or equal to 1"):
        baselines.dump(baselines.import_table(table, **IDENTITY), tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == [table]


def test_a_bad_row_of_a_json_table_is_refused_with_its_line(tmp_path: Path) -> None:
    table = tmp_path / "t.json"
    rows = ['{"dataset": "x", "budget": 1, "accept_length": 2}', '{"dataset": "y", "budget": 1}']
    table.write_text("[\n " + ",\n ".join(rows) + "\n]")
    with pytest.raises(InputError) as caught:
        baselines.import_table(table, **IDENTITY)
    assert caught.value.render().startswith(f"{table}:3: missing column 'accept_length'")
