"""One self-contained HTML file of a run: no script, no request, readable offline and on a phone."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ddtree_deploy.errors import InputError
from ddtree_deploy.report import charts
from ddtree_deploy.report.measurements import by_name, flat
from ddtree_deploy.running.outcome import FIGURES, meaning, number
from ddtree_deploy.text import size, span

# Verdicts are told by word and sign; the colour only helps.
SIGNS = {
    "pass": "\N{CHECK MARK}",
    "fail": "\N{MULTIPLICATION X}",
    "inconclusive": "?",
    "skipped": "\N{EN DASH}",
    "not run": "\N{MIDDLE DOT}",
    "unfinished": "\N{HORIZONTAL ELLIPSIS}",
    "interrupted": "\N{MULTIPLICATION X}",
    "error": "\N{MULTIPLICATION X}",
    "unknown": "?",
}
_NOTHING = 0.005  # a change below this has no colour


def render(bundle: dict[str, Any]) -> str:
    """The page of a bundle. Deterministic: the same bundle gives the same bytes."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ddtree_deploy.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(span=span, size=size, clock=clock, short=short)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    measured = bundle["measurements"]
    return environment.get_template("report.html.j2").render(
        b=bundle,
        meaning="" if bundle["exit"] is None else meaning(bundle["exit"]),
        signs=SIGNS,
        bars=bars(bundle["steps"]),
        figures=figures(measured),
        plots=plots(measured),
        sweep=sweep(bundle["steps"]),
        loads=loads(measured),
        tokens_gate=_figures_of(bundle["steps"], "tokens"),
        compared=compared(measured["acceptance"]),
        soak=soak(bundle["steps"]),
        details={s["name"]: flat(s["figures"]) for s in bundle["steps"]},
        version=metadata.version("ddtree-deploy"),
    )


def write(bundle: dict[str, Any], path: Path, **more: Any) -> None:
    """Write the page of a bundle. Raises InputError, with `more` of what to do."""
    try:
        path.write_text(render(bundle), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=path, **more) from None


def plots(measured: dict[str, Any]) -> dict[str, Markup]:
    """The drawings by name; empty where there is nothing to draw."""
    before, after = measured["before"] or {}, measured["after"] or {}

    def speeds(name: str, side: dict[str, Any]) -> list[float]:
        judged = ((measured["speed"] or {}).get("rounds") or {}).get(name)
        if judged:  # warm-up and void rounds are not drawn
            return [v for v, used in zip(judged["throughput"], judged["used"], strict=True) if used]
        return [r["tokens_per_s"] for r in side.get("rounds") or [] if r["tokens_per_s"] is not None]

    drawn = {
        "rounds": charts.rounds(speeds("before", before), speeds("after", after)),
        "interval": charts.interval(measured["speed"] or {}),
        "histogram": charts.histogram(before.get("accept_lengths", []), after.get("accept_lengths", [])),
    }
    return {name: Markup(svg) for name, svg in drawn.items()}


def sweep(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A sweep's figures with {rows, plots}; None for other runs."""
    found = _figures_of(steps, "sweep")
    if found is None:
        return None
    plots = [Markup(svg) for figure in charts.SWEEP if (svg := charts.sweep(found["rows"], *figure))]
    rows = [{"host_percent": None, "host_moved": False, **row} for row in found["rows"]]
    return {**found, "rows": rows, "plots": plots}


def _figures_of(steps: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((s["figures"] for s in steps if s["kind"] == kind and s["figures"]), None)


def figures(measured: dict[str, Any]) -> list[dict[str, str]]:
    """Rows {name, before, after, change, better} of what was measured on either side."""
    before, after = by_name(measured["before"]), by_name(measured["after"])
    rows: list[dict[str, Any]] = []
    for key, name, digits, more_is_better in FIGURES:
        old, new = before.get(key), after.get(key)
        if old is None and new is None:
            continue
        change = new / old - 1 if old and new is not None else None
        better = ""
        if change is not None and abs(change) >= _NOTHING:
            better = "better" if (change > 0) == more_is_better else "worse"
        rows.append(
            {
                "name": name.removeprefix("output "),  # the page is read on a phone, too
                "before": number(old, digits),
                "after": number(new, digits),
                "change": "" if change is None else f"{change:+.1%}",
                "better": better,
            }
        )
    return rows


def loads(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows {concurrency, before, after} of the concurrencies that were reported beside the judged one."""
    before, after = (
        {one["concurrency"]: one for one in (measured[side] or {}).get("also") or []}
        for side in ("before", "after")
    )
    both = sorted({*before, *after})
    return [{"concurrency": c, "before": before.get(c), "after": after.get(c)} for c in both]


def compared(acceptance: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Rows {verdict, reason}, with {what, value, expected, against, tolerance} where the gate measured."""
    rows: list[dict[str, Any]] = []
    for one in (acceptance or {}).get("judged") or []:
        rows += compared(one) if "judged" in one else [one]  # against a file: its own figures
    return rows


def soak(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A soak's figures with their plot; None where there was none."""
    found = _figures_of(steps, "soak")
    if found is None:
        return None
    lines = {"processes": found.get("memory_mib") or [], "GPUs": found.get("gpu_mib") or []}
    return {**found, "plot": Markup(charts.memory(lines, found["requests"]))}


def bars(steps: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Where each step lies on the run's time line: {name: {left, width}} in percent; steps that ran only."""
    ran = [s for s in steps if s["started"] is not None]
    if not ran:
        return {}
    begin = min(s["started"] for s in ran)
    whole = max(max(s["started"] + (s["seconds"] or 0) for s in ran) - begin, 1e-9)
    found = {}
    for step in ran:
        left = 100 * (step["started"] - begin) / whole
        width = max(100 * (step["seconds"] or 0) / whole, 0.6)  # so that a short step can be seen
        found[step["name"]] = {
            "left": round(min(left, 99.4), 2),
            "width": round(min(width, 100 - min(left, 99.4)), 2),
        }
    return found


def clock(seconds: float | None) -> str:
    """The host's clock, as UTC."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def short(digest: str) -> str:
    """The first twelve digits of a digest."""
    return digest[:12] or "-"
