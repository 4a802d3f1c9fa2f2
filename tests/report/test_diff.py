"""What differs between two runs, as data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.report import bundle, diff

from . import samples


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Any]:
    return bundle.load(samples.write_run(tmp_path, "good"))


def changed(one: dict[str, Any], two: dict[str, Any]) -> dict[tuple[str, str], tuple[str, str]]:
    return {(d.section, d.field): (d.first, d.second) for d in diff.compare(one, two)}


def test_a_run_does_not_differ_from_itself(good: dict[str, Any]) -> None:
    assert diff.compare(good, copy.deepcopy(good)) == []


def test_two_hosts(tmp_path: Path, good: dict[str, Any]) -> None:
    other = bundle.load(samples.write_run(tmp_path, "slow", host="gpu2", sglang="0.5.22", gpus=1))
    found = changed(good, other)
    assert found["outcome", "verdict"] == ("pass", "fail")
    assert found["host", "hostname"] == ("gpu1", "gpu2")
    assert found["host", "GPU 1"] == ("NVIDIA H200 (143771 MiB)", "-")
    assert found["packages", "sglang"] == ("0.5.23", "0.5.22")
    assert found["gates", "soak"] == ("pass", "not run")
    assert found["gates", "benchmark"][1].startswith("fail: speed ratio")
    assert ("payload", "digest") not in found
    assert ("packages", "torch") not in found


def test_a_changed_flag_is_one_line(good: dict[str, Any]) -> None:
    other = copy.deepcopy(good)
    argv = other["fingerprint"]["service"]["new_command"]
    argv[-1] = "--speculative-ddtree-budget=64"
    argv.append("--enable-metrics")
    assert changed(good, other) == {
        ("service", "--speculative-ddtree-budget"): ("32", "64"),
        ("service", "--enable-metrics"): ("-", "set"),
    }


def test_figures_carry_their_change_and_tiny_ones_are_left_out(good: dict[str, Any]) -> None:
    other = copy.deepcopy(good)
    figures = other["measurements"]["after"]["figures"]
    figures["output_tokens_per_s"] *= 0.8
    figures["ttft_ms"] *= 1.001
    (found,) = diff.compare(good, other)
    assert found.field == "output_tokens_per_s after"
    assert found.change == pytest.approx(-0.2)


def test_a_changed_file_is_named(good: dict[str, Any]) -> None:
    other = copy.deepcopy(good)
    other["targets"][2]["sha256"] = "99" * 32
    assert changed(good, other) == {
        ("files", "site:sglang_ddtree/ddtree_info.py"): ("121212121212", "999999999999")
    }
