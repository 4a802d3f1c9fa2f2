"""What a server tells of its flags, against the words of a command line."""

from __future__ import annotations

from typing import Any

import pytest

from ddtree_deploy.onhost.judge import told

SAME, OTHER, UNKNOWN = told.SAME, told.OTHER, told.UNKNOWN


@pytest.mark.parametrize(
    ("name", "value", "tells", "verdict"),
    [
        ("speculative-ddtree-budget", "16", 16, SAME),
        ("speculative-ddtree-budget", "16", 32, OTHER),
        ("speculative-ddtree-budget", "16", "16", SAME),
        ("speculative-ddtree-budget", "16", None, OTHER),
        ("mem-fraction-static", "0.90", 0.9, SAME),
        ("mem-fraction-static", ".9", 0.9, SAME),
        ("mem-fraction-static", "0.9", 0.89, OTHER),
        ("context-length", "128k", 131072, UNKNOWN),
        ("speculative-num-steps", "None", None, SAME),
        ("disable-radix-cache", None, True, SAME),
        ("disable-radix-cache", None, False, OTHER),
        ("disable-radix-cache", None, None, OTHER),
        ("disable-radix-cache", None, "auto", UNKNOWN),
        ("enable-nan-detection", "true", True, SAME),
        ("enable-nan-detection", "0", True, OTHER),
        ("speculative-algorithm", "ddtree", "DDTREE", SAME),
        ("speculative-algorithm", "NEXTN", "EAGLE", SAME),
        ("speculative-algorithm", "DDTREE", "DFLASH", OTHER),
        ("speculative-algorithm", "DDTREE", None, OTHER),
        ("served-model-name", "llama", "Llama", OTHER),
        ("model-path", "/models/a", "/models/b", OTHER),
        ("model-path", "org/name", "/cache/org--name", UNKNOWN),
        ("cuda-graph-bs", "8", [8], SAME),
        ("cuda-graph-bs", "8", [1, 2, 4, 8], UNKNOWN),
        ("json-model-override-args", '{"a": 1}', '{"a":1}', SAME),
        ("json-model-override-args", '{"a": 1}', {"a": 2}, OTHER),
        ("dist-timeout", "", "", SAME),
    ],
)
def test_case_30_a_value_is_compared_as_the_parser_types_it(
    name: str, value: str | None, tells: Any, verdict: str
) -> None:
    assert told.flag({name.replace("-", "_"): tells}, name, value)[0] == verdict


@pytest.mark.parametrize(
    ("name", "value", "info", "verdict"),
    [
        ("tp", "2", {"tp_size": 2}, SAME),
        ("tensor-parallel-size", "2", {"tp_size": 1}, OTHER),
        ("model", "/m", {"model_path": "/m"}, SAME),
        ("no-such-flag", "1", {"tp_size": 1}, UNKNOWN),
        ("no-enable-dsa", None, {"enable_dsa": False}, SAME),
        ("no-enable-dsa", None, {"enable_dsa": True}, OTHER),
        ("disable-radix-cache", None, {}, UNKNOWN),
    ],
)
def test_case_30_a_flag_is_known_by_its_other_name_and_unknown_without_a_field(
    name: str, value: str | None, info: dict[str, Any], verdict: str
) -> None:
    assert told.flag(info, name, value)[0] == verdict


@pytest.mark.parametrize(
    ("words", "name", "word"),
    [
        (["--tp", "2"], "tensor-parallel-size", "--tp"),
        (["--model=/m"], "model-path", "--model=/m"),
        (["--speculative-num-draft", "4"], "speculative-num-draft-tokens", "--speculative-num-draft"),
        (["--speculative-algorithm", "X"], "speculative-algorithm-more", ""),  # a flag of its own
        (["--", "-x", "tp"], "tp-size", ""),
        (["--other"], "tp-size", ""),
    ],
)
def test_case_30_a_flag_is_found_by_an_alias_and_by_its_beginning(
    words: list[str], name: str, word: str
) -> None:
    info = {"speculative_algorithm": "DDTREE", "tp_size": 1, "model_path": "/m"}
    assert told.spelt(["python", "-m", "sglang.launch_server", *words], name, info) == word


def test_the_label_of_a_metric_on_all_its_samples() -> None:
    text = (
        "# TYPE ddtree:info gauge\n"
        'ddtree:info{rank="0",version="1.0 \\"a\\""} 1.0\n'
        'ddtree:info{version="2.0",rank="1"} 1.0\n'
        'ddtree:info_more{version="3.0"} 1.0\n'
        'ddtree:info{rank="2"} 1.0\n'
    )
    assert told.labels(text, "ddtree:info", "version") == ['1.0 "a"', "2.0", ""]
    assert told.labels(text, "ddtree:inf", "version") == []


def test_a_field_is_looked_for_in_every_process_that_tells() -> None:
    info = {"f": 1, "internal_states": [{"f": 2}, {}, "odd", {"f": 3}]}
    assert told.everywhere(info, "f") == [1, 2, 3]
    assert told.everywhere({"internal_states": None}, "f") == []
