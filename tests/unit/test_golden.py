"""Golden files: what is written can be read, what is damaged is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.references import golden
from ddtree_deploy.onhost.judge import expected
from ddtree_deploy.onhost.measure import identity, memory

RESULT: dict[str, Any] = {
    "identity": {"model": "m", "sglang": "0.5.23", "gpu": "2 x H200", "dtype": "bfloat16"},
    "epsilon": 1e-05,  # YAML would take this for a text
    "tie_share": 0.0,
    "max_new_tokens": 2,
    "texts": ["a"],
    "sample": {
        "prompts": ["0"],
        "outputs": [[5, 6]],
        "completion": [2],
        "verify_steps": [None],
        "speculative": "",
        "logprobs": [[-1e-06, -0.5]],
        "top2": [[[[5, -1e-06], [7, -2.0]], [[6, -0.5], [8, -0.7]]]],
        "refused": "",
        "steps_per_token": 1.0,
        "accept_length": 1.0,
    },
    "bench": None,
}


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "golden" / "box.json"
    golden.write(golden.of_baseline("box", "2026-11-29", RESULT), path)
    data = json.loads(golden.read(path))
    assert data["host"] == "box" and data["sample"] == RESULT["sample"] and "bench" not in data
    assert [p.name for p in path.parent.iterdir()] == ["box.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "format: format 2 is not known here, 1 is"),
        ({"texts": ["a", "b"]}, "1 prompts for 2 prompts"),
        ({"epsilon": 0}, "epsilon: Input should be greater than 0"),
        ({"sample": {**RESULT["sample"], "logprobs": [[-1.0]]}}, "logprobs do not go with the outputs"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_a_damaged_one_is_refused_by_name(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps({**golden.of_baseline("box", "now", RESULT), **change}))
    with pytest.raises(InputError) as caught:
        golden.read(path)
    assert str(path) in caught.value.render() and says in caught.value.render()


def test_a_servers_identity_is_its_model_wherever_it_lies() -> None:
    info = {"model_path": "/models/Qwen3-8B/", "version": "0.5.23", "dtype": "bfloat16", "tp_size": 2}
    found = identity.of(info, ["H200", "H200"])
    assert found == {
        "model": "Qwen3-8B", "sglang": "0.5.23", "gpu": "2 x H200", "dtype": "bfloat16",
        "quantization": "", "tp": "2",
    }  # fmt: skip
    assert identity.of({}, [])["gpu"] == "none"


def test_the_budget_is_what_the_server_was_started_with() -> None:
    tree = {"speculative_algorithm": "DDTREE", "speculative_num_draft_tokens": 17}
    assert expected.budget_of(tree) == 16
    assert expected.budget_of({**tree, "speculative_ddtree_budget": 8}) == 8
    assert expected.budget_of({"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 16}) == 0


def test_memory_that_grows_is_told_from_memory_that_settles() -> None:
    settles = [500.0 + min(i, 8) * 50 for i in range(40)]
    assert memory.fault("memory", settles, 0.1) == ""
    leaks = [500.0 + 10 * i for i in range(40)]
    assert memory.fault("memory", leaks, 0.1) == "memory grew from 645 to 845 MiB (+31%, allowed 10%)"
    assert memory.fault("memory", [500.0, 900.0], 0.1) == "", "too short to say"
    assert memory.fault("memory", [-1.0] * 40, 0.1) == "", "unknown"


def test_one_that_cannot_be_written_is_said_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    data = golden.of_baseline("box", "now", RESULT)
    with pytest.raises(InputError, match="cannot be written"):
        golden.write(data, tmp_path / "file" / "g.json")
    bad = tmp_path / "g.json"
    with pytest.raises(InputError) as caught:
        golden.write({**data, "epsilon": 0}, bad)
    assert caught.value.file == str(bad) and caught.value.field == "epsilon"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
