"""The report's text and plots, without a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.report import bundle, charts, html

from . import samples


def page(tmp_path: Path, kind: str) -> str:
    return html.render(bundle.load(samples.write_run(tmp_path, kind)))


class Outline(HTMLParser):
    """Open elements, what refers to something outside, and visible text."""

    VOID = ("meta", "link", "br", "hr", "img", "circle", "path", "rect", "line")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.scripts: list[str | None] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        for name in ("src", "href", "xlink:href", "action"):
            if found.get(name) and not str(found[name]).startswith(("data:", "#")):
                self.refers.append(f"{tag} {name}={found[name]}")
        if tag == "script":
            self.scripts.append(found.get("type"))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


@pytest.mark.parametrize("kind", samples.KINDS)
def test_a_page_is_well_formed_and_refers_to_nothing_outside(tmp_path: Path, kind: str) -> None:
    text = page(tmp_path, kind)
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.refers == []
    assert outline.scripts == ["application/json"]
    assert "url(" not in text and "@import" not in text


def test_the_page_tells_verdict_gate_figures_and_next_command(tmp_path: Path) -> None:
    outline = Outline()
    outline.feed(page(tmp_path, "slow"))
    words = " ".join(outline.text.split())
    for said in (
        "fail gpu1",
        "benchmark: speed ratio 0.490",
        "The host: as before (exit code 1",
        "next: ddtree-deploy status gpu1",
        "95 % interval [0.4",
        "soak · not run",
        "undone",
        "calibrated, 8 restarts",
        "NVIDIA H200",
    ):
        assert said in words


def test_the_page_tells_the_time_without_service_where_it_is_known(tmp_path: Path) -> None:
    assert "<dt>without service</dt><dd>3 min 07 s</dd>" in page(tmp_path, "good")
    assert "without service" not in page(tmp_path, "slow")


def test_what_a_host_prints_cannot_become_markup(tmp_path: Path) -> None:
    text = page(tmp_path, "compile")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "SyntaxError: invalid syntax &lt;b&gt;" in text


def test_the_page_carries_its_bundle(tmp_path: Path) -> None:
    found = bundle.load(samples.write_run(tmp_path, "compile"))
    text = html.render(found)
    embedded = re.search(r'<script type="application/json" id="bundle">(.*?)</script>', text, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1]) == found


def test_the_same_bundle_gives_the_same_page(tmp_path: Path) -> None:
    found = bundle.load(samples.write_run(tmp_path, "good"))
    assert html.render(found) == html.render(found)


def test_a_diverging_token_is_marked_in_both_outputs(tmp_path: Path) -> None:
    text = page(tmp_path, "wrong")
    assert "prompt 3, position 17" in text
    expected = re.search(r'<mark class="expected">(\d+)</mark>', text)
    got = re.search(r'<mark class="got">(\d+)</mark>', text)
    assert expected is not None and got is not None
    assert int(got[1]) == int(expected[1]) + 1


def test_steps_lie_on_the_time_line_in_order() -> None:
    steps: list[dict[str, Any]] = [
        {"name": "a", "started": 100.0, "seconds": 25.0},
        {"name": "b", "started": 125.0, "seconds": 75.0},
        {"name": "c", "started": None, "seconds": None},
    ]
    assert html.bars(steps) == {"a": {"left": 0.0, "width": 25.0}, "b": {"left": 25.0, "width": 75.0}}


def test_a_bar_never_leaves_the_line() -> None:
    steps = [
        {"name": "long", "started": 0.0, "seconds": 1000.0},
        {"name": "last", "started": 1000.0, "seconds": 0.0},
    ]
    last = html.bars(steps)["last"]
    assert last["width"] > 0
    assert last["left"] + last["width"] <= 100


def test_better_and_worse_follow_the_figure_not_the_sign() -> None:
    measured = {
        "before": {"figures": {"output_tokens_per_s": 100.0, "ttft_ms": 10.0, "tpot_ms": 5.0}},
        "after": {"figures": {"output_tokens_per_s": 80.0, "ttft_ms": 8.0, "tpot_ms": 5.001}},
    }
    rows = {r["name"]: r["better"] for r in html.figures(measured)}
    assert rows == {"tokens/s": "worse", "TTFT, ms": "better", "TPOT, ms": ""}


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.01], [1.7, 2.1, 3.4], [1.0, 9.9, 40.0], [2.0, 2.0]])
def test_bins_hold_every_value_once(values: list[float]) -> None:
    edges = charts.bins(values)
    assert len(edges) - 1 <= 12
    assert edges[0] <= min(values) and max(values) < edges[-1]
    assert sum(charts.count(values, edges)) == len(values)


def test_a_value_on_an_edge_belongs_to_the_bin_above() -> None:
    assert charts.count([1.0, 1.2, 1.39, 1.4], [1.0, 1.2, 1.4, 1.6]) == [1, 2, 1]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1461, [0, 500, 1000]),
        (0.71, 1.36, [0.8, 1.0, 1.2]),
        (0.476, 0.5234, [0.48, 0.49, 0.5, 0.51, 0.52]),
        (0, 2, [0, 0.5, 1, 1.5, 2]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_few_and_round(low: float, high: float, expected: list[float]) -> None:
    assert charts.ticks(low, high) == pytest.approx(expected)


def test_nothing_measured_draws_nothing() -> None:
    assert charts.bins([]) == []
    assert charts.rounds([], []) == charts.histogram([], []) == charts.interval({}) == ""


def test_a_plot_has_a_label_for_those_who_cannot_see_it() -> None:
    drawn = charts.rounds([100.0, 101.0], [120.0])
    assert 'role="img"' in drawn and 'aria-label="Tokens per second' in drawn
    assert "<script" not in drawn and "<!--" not in drawn
