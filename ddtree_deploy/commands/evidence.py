"""report, history, show, diff: what was recorded of earlier runs. They read `.ddtree-deploy/` and reach no
host."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_deploy.commands import inputs
from ddtree_deploy.inputs.references import baselines
from ddtree_deploy.report import bundle, diff, history
from ddtree_deploy.report.measurements import by_name
from ddtree_deploy.text import safe, span

Run = Annotated[
    str, typer.Argument(help="A run's id, the beginning or end of one, `last`, or a run's folder.")
]
Hosts = Annotated[
    Path | None,
    typer.Option("--hosts", metavar="FILE", help="Its folder has the record. [default: hosts.yaml]"),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("report")(report)
    app.command("history")(list_runs)
    app.command("show")(show)
    app.command("diff")(compare)
    baseline = typer.Typer(help="Accept lengths that were measured elsewhere.", no_args_is_help=True)
    baseline.command("import")(import_baseline)
    app.add_typer(baseline, name="baseline")


def report(
    run: Run = "last",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="[default: report-RUN.html]")
    ] = None,
    hosts: Hosts = None,
) -> None:
    """Write one HTML file about a run: readable offline, on a phone, and a year from now."""
    from ddtree_deploy.report import html  # its libraries are needed for nothing else here

    found = bundle.load(_folder(run, hosts))
    path = output or Path(f"report-{found['run']}.html")
    html.write(found, path, next_command=f"ddtree-deploy report {run} -o FILE")
    print(f"{path}: {found['host']} {found['action']} {found['verdict']}, {path.stat().st_size // 1000} kB")


def list_runs(
    host: Annotated[str, typer.Argument(help="Only runs on this host.")] = "",
    hosts: Hosts = None,
    json_lines: Json = False,
) -> None:
    """List the runs that were made from here, oldest first."""
    runs = bundle.runs_folder(hosts or inputs.HOSTS)
    rows = history.rows(runs, host)
    if json_lines:
        for row in rows:
            print(json.dumps(asdict(row)))
        return
    if not rows:
        print(f"no run{' on ' + host if host else ''} is recorded in {runs}")
        return
    _table(
        ("run", "host", "action", "payload", "verdict", "exit", "at", "host was left", "took"),
        [
            (
                r.run, r.host, r.action, r.payload, r.verdict, "-" if r.exit is None else str(r.exit),
                r.step or "-", r.state, "-" if r.seconds is None else span(r.seconds),
            )
            for r in rows
        ],
    )  # fmt: skip


def show(run: Run = "last", hosts: Hosts = None, json_bundle: Json = False) -> None:
    """Show one run: its steps, verdicts and figures; with --json the whole evidence bundle."""
    found = bundle.load(_folder(run, hosts))
    if json_bundle:
        print(json.dumps(found, indent=1))
        return
    for line in describe(found):
        print(line)
    _table(
        ("step", "verdict", "took", "why"),
        [
            (s["name"], s["verdict"], "-" if s["seconds"] is None else span(s["seconds"]), _why(s))
            for s in found["steps"]
        ],
    )
    rows = figure_rows(found["measurements"])
    if rows:
        print()
        _table(("figure", "before", "after"), rows)


def describe(found: dict[str, Any]) -> list[str]:
    """The head of `show`: what, where, how it ended, and what the host is in now."""
    payload = found["payload"]
    of = f" of {payload['name']} {payload['version']}" if payload["name"] else ""
    lines = [
        f"run {found['run']}: {found['action']}{of} "
        f"on {found['host']}, by {found['who'] or 'unknown'}, {found['created'] or 'time unknown'}",
        f"{found['verdict']}" + (f" at {found['step']}" if found["step"] else "")
        + (f": {found['reason']}" if found["reason"] else ""),
        f"the host was left: {found['state']}",
        *([] if found["down_s"] is None else [f"without service: {span(found['down_s'])}"]),
    ]  # fmt: skip
    host = found["fingerprint"]
    if host:
        packages = host["packages"]
        parts = [
            host["os"],
            host["kernel"],
            *(f"{n} {packages[n]}" for n in ("sglang", "torch") if n in packages),
        ]
        gpus = sorted(set(host["gpus"]))
        parts += [f"{host['gpus'].count(g)} x {g}" for g in gpus]
        lines.append(f"host: {', '.join(p for p in parts if p)}" if any(parts) else "host: unknown")
    return [*(safe(line) for line in lines), *(f"note: {safe(w)}" for w in found["warnings"]), ""]


def figure_rows(measured: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Rows (figure, before, after) of the measurements; empty where nothing was measured."""
    old, new = by_name(measured["before"]), by_name(measured["after"])
    return [(name, diff.shown(old.get(name)), diff.shown(new.get(name))) for name in {**old, **new}]


def compare(first: Run, second: Run, hosts: Hosts = None, json_lines: Json = False) -> None:
    """Show what differs between two runs: two hosts, or two days."""
    one, two = (bundle.load(_folder(run, hosts)) for run in (first, second))
    found = diff.compare(one, two)
    if json_lines:
        for difference in found:
            print(json.dumps(asdict(difference)))
        return
    if not found:
        print(f"{one['run']} and {two['run']} differ in nothing but their time")
        return
    _table(
        ("", "field", one["run"], two["run"], "change"),
        [
            (d.section, d.field, d.first, d.second, "" if d.change is None else f"{d.change:+.1%}")
            for d in found
        ],
    )


def import_baseline(  # noqa: PLR0917
    table: Annotated[
        Path, typer.Argument(help="CSV with a header, or a JSON list; see baselines/README.md.")
    ],
    model: Annotated[str, typer.Option("--model", help="The target, as on the hub or as a path.")],
    draft: Annotated[str, typer.Option("--draft", help="The draft model.")],
    source: Annotated[str, typer.Option("--source", help="Where the figures come from.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The baseline file to write.")
    ],
    note: Annotated[str, typer.Option("--note", help="How they were measured.")] = "",
) -> None:
    """Make a baseline file from a table of accept lengths."""
    data = baselines.import_table(table, model=model, draft=draft, source=source, note=note)
    made = baselines.dump(data, output)
    print(f"{output}: {len(made.entries)} figures for {made.model} with {made.draft}")


def _folder(run: str, hosts: Path | None) -> Path:
    folder = Path(run)
    if (folder / "plan.json").is_file() or (folder / "journal.jsonl").is_file():
        return folder.resolve()
    return bundle.find(bundle.runs_folder(hosts or inputs.HOSTS), run)


def _why(step: dict[str, Any]) -> str:
    undo = step["undo"]
    undone = "" if undo is None else " (undone)" if undo["phase"] == "done" else f" (undo {undo['phase']})"
    return f"{step['reason']}{undone}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; on a terminal the last ones wrap, in a pipe every row is one line."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in head:
        table.add_column(name, overflow="fold", no_wrap=not sys.stdout.isatty())
    for row in rows:
        table.add_row(*(safe(cell) for cell in row))
    width = None if sys.stdout.isatty() else 10_000
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
