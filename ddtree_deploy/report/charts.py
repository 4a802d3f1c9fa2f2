"""The report's plots: inline SVG by pygal, in the page's own colours, without scripts.

pygal rather than matplotlib: 130 kB of pure Python on the controller instead of 40 MB, and colours may be
CSS variables, so that one picture serves light and dark.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pygal
from pygal.style import Style

_NS = "{http://www.w3.org/2000/svg}"


def _style(*colors: str) -> Style:
    return Style(
        background="transparent",
        plot_background="transparent",
        foreground="var(--ink)",
        foreground_strong="var(--ink)",
        foreground_subtle="var(--line)",
        guide_stroke_color="var(--line)",
        major_guide_stroke_color="var(--line)",
        guide_stroke_dasharray="none",
        major_guide_stroke_dasharray="none",
        colors=colors,
        opacity="1",
        opacity_hover="0.7",
        font_family="inherit",
        label_font_size=13,
        major_label_font_size=13,
        legend_font_size=13,
        title_font_size=13,
    )


_STYLE = _style("var(--before)", "var(--after)", "var(--limit)")
_ONLY_AFTER = _style("var(--after)")
# Narrow on purpose: the same drawing is read on a phone at its own size, and stands beside others on a desk.
_SIZE = {"width": 400, "height": 240}


def rounds(before: Sequence[float], after: Sequence[float]) -> str:
    """Tokens/s of each round. Empty when there is nothing to draw."""
    if not before and not after:
        return ""
    style = _STYLE if before else _ONLY_AFTER
    titles = {"x_title": "round", "y_title": "tokens/s"}
    chart = _chart(pygal.XY, "rounds", style=style, stroke=False, dots_size=4, **titles)
    most = max(len(before), len(after))
    chart.x_labels = list(range(1, most + 1))
    chart.xrange = (0.5, most + 0.5)
    _from_zero(chart, max([*before, *after]) * 1.08)
    for name, values in _sides(before, after):
        chart.add(name, [(i, round(v, 1)) for i, v in enumerate(values, 1)])
    return _svg(chart, "Tokens per second of each round, before and after")


def interval(speed: dict[str, Any]) -> str:
    """The speed ratio with its interval, and min_ratio. Empty when the gate came to no interval."""
    if "interval" not in speed:
        return ""
    low, high = speed["interval"]
    least, ratio = speed["min_ratio"], speed["ratio"]
    chart = _chart(
        pygal.XY,
        "interval",
        height=210,
        margin_bottom=16,
        dots_size=3,
        margin_right=18,
        margin_left=18,
        legend_at_bottom_columns=3,
        show_y_labels=False,
        show_y_guides=False,
        show_x_guides=True,
        x_title="speed after / before",
    )
    left, right = min(low, least, 1.0), max(high, least, 1.0)
    margin = 0.08 * (right - left)
    chart.range, chart.xrange = (-1.2, 1.2), (left - margin, right + margin)
    chart.x_labels = ticks(left - margin, right + margin)
    chart.x_value_formatter = lambda x: f"{x:.2f}"
    chart.value_formatter = lambda y: ""
    chart.add("1 (as before)", [(1.0, -1), (1.0, 1)], show_dots=False)
    chart.add("interval", [(low, 0), (ratio, 0), (high, 0)], dots_size=6)
    dashes = {"dasharray": "5, 4"}
    chart.add("min_ratio", [(least, -1), (least, 1)], show_dots=False, stroke_style=dashes)
    return _svg(chart, f"Speed ratio {ratio:.3f}, interval {low:.3f} to {high:.3f}, min_ratio {least:g}")


def histogram(before: Sequence[float], after: Sequence[float]) -> str:
    """Requests by accept length. Empty when there is nothing to draw."""
    edges = bins([*before, *after])
    if not edges:
        return ""
    style = _STYLE if before else _ONLY_AFTER
    titles = {"x_title": "accept length of a request", "y_title": "requests"}
    chart = _chart(pygal.Bar, "accept", style=style, **titles)
    chart.x_labels = [f"{e:g}" for e in edges[:-1]]
    chart.value_formatter = lambda y: f"{y:.0f}"
    highest = 0
    for name, values in _sides(before, after):
        counts = count(values, edges)
        highest = max(highest, *counts)
        chart.add(name, counts)
    chart.range = (0, highest)
    chart.y_labels = [t for t in ticks(0, highest) if t == int(t)]
    return _svg(chart, "Number of requests by accept length, before and after")


def memory(lines: dict[str, Sequence[float]], requests: int) -> str:
    """Memory over a soak, MiB against requests done; samples under zero are unknown. Empty without any."""
    known = {name: [v for v in values if v >= 0] for name, values in lines.items()}
    known = {name: values for name, values in known.items() if len(values) > 1}
    if not known:
        return ""
    chart = _chart(
        pygal.XY,
        "memory",
        dots_size=2,
        margin_right=18,
        margin_bottom=14,
        x_title="requests done",
        y_title="MiB",
    )
    top = max(max(values) for values in known.values()) * 1.15
    _from_zero(chart, top)
    chart.xrange, chart.x_labels = (0, requests), ticks(0, requests)
    chart.x_value_formatter = lambda x: f"{x:.0f}"
    chart.value_formatter = lambda y: f"{y:,.0f}"
    for name, values in known.items():
        step = requests / (len(values) - 1)
        chart.add(name, [(round(i * step, 1), round(v, 1)) for i, v in enumerate(values)])
    return _svg(chart, "Memory of the service over the soak")


SWEEP = (
    ("output_tokens_per_s", "tokens/s", 1),
    ("accept_length", "accept length", 3),
    ("ttft_ms", "TTFT, ms", 1),
    ("tpot_ms", "TPOT, ms", 2),
)


def sweep(rows: Sequence[dict[str, Any]], key: str, title: str, digits: int) -> str:
    """One figure against the budget (0: the chain), a line for each concurrency. Empty without figures."""
    budgets = sorted({r["budget"] for r in rows})
    known = [r[key] for r in rows if r[key] is not None]
    if not known:
        return ""
    chart = _chart(pygal.Line, f"sweep-{key}", dots_size=4, x_title="budget", y_title=title)
    chart.x_labels = ["chain" if b == 0 else str(b) for b in budgets]
    _from_zero(chart, max(known) * 1.08)
    for concurrency in sorted({r["concurrency"] for r in rows}):
        found = {r["budget"]: r[key] for r in rows if r["concurrency"] == concurrency}
        values = [found.get(b) for b in budgets]
        chart.add(f"concurrency {concurrency}", [None if v is None else round(v, digits) for v in values])
    return _svg(chart, f"{title} against the tree budget")


def _from_zero(chart: Any, top: float) -> None:
    chart.range, chart.y_labels = (0, top), ticks(0, top)


def _sides(before: Sequence[float], after: Sequence[float]) -> list[tuple[str, Sequence[float]]]:
    """The series that there are; what is compared with nothing is called `now`."""
    found = [("before", before)] if before else []
    return [*found, ("after" if before else "now", after)] if after else found


def count(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values lie in each bin; a value on an edge belongs to the bin above it."""
    found = [0] * (len(edges) - 1)
    for value in values:  # by comparing, each value once: adding widths up would count some twice
        found[min(bisect.bisect_right(edges, value + 1e-9), len(found)) - 1] += 1
    return found


def bins(values: Sequence[float], at_most: int = 12) -> list[float]:
    """Edges of equal bins of round widths that hold all values; the last edge is above the largest."""
    if not values:
        return []
    low, high = min(values), max(values)
    for width in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
        first = math.floor(low / width + 1e-9)
        count = math.floor(high / width + 1e-9) - first + 1
        if count <= at_most:
            break
    return [round((first + i) * width, 6) for i in range(count + 1)]


def ticks(low: float, high: float) -> list[float]:
    """At most seven multiples of 1, 2 or 5 times a power of ten, between `low` and `high`."""
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 6))
    step = next(m * power for m in (1, 2, 5, 10) if (high - low) / (m * power) <= 6)
    return [round(i * step, 10) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _chart(kind: Any, name: str, **options: Any) -> Any:
    settings = {
        **_SIZE,
        "style": _STYLE,
        "js": [],
        "explicit_size": False,
        "legend_at_bottom": True,
        "legend_box_size": 10,
        "margin": 4,
        "spacing": 8,
        **options,
    }
    chart = kind(**settings)
    chart.uuid = f"plot-{name}"  # else random, and two reports of one run would differ
    return chart


def _svg(chart: Any, label: str) -> str:
    """The drawing without script and comments; what pygal keeps for its script becomes native tooltips."""
    root = ElementTree.fromstring(chart.render())
    for parent in root.iter():
        for child in list(parent):
            if child.tag in (f"{_NS}script", f"{_NS}title"):
                parent.remove(child)
        notes = [c for c in parent if c.tag == f"{_NS}desc"]
        value = next((c.text for c in notes if c.get("class") == "value"), None)
        for note in notes:
            parent.remove(note)
        if value:
            tip = ElementTree.SubElement(parent, f"{_NS}title")
            tip.text = value.removesuffix(": ")
    root.set("role", "img")
    root.set("aria-label", label)
    ElementTree.register_namespace("", _NS[1:-1])
    return ElementTree.tostring(root, encoding="unicode")
