"""sweep: the service with each tree budget in turn; a table, a plot, and the launch argument that follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_deploy.commands import gates, inputs
from ddtree_deploy.commands.options import Hosts, Json, Measuring, Target, Yes
from ddtree_deploy.errors import DeployError, InputError
from ddtree_deploy.inputs.playbook import Step
from ddtree_deploy.onhost.judge.sweep_table import CHAIN
from ddtree_deploy.report import bundle
from ddtree_deploy.running.complaint import bug, complain

HEADER = ("concurrency", "budget", "tokens/s", "x chain", "interval", "accept length", "TTFT, ms", "TPOT, ms")


def sweep(  # noqa: PLR0917
    target: Target,
    budgets: Annotated[str, typer.Option("--budgets", metavar="N,N,...", help="Tree budgets to try.")],
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,N,...", help="Requests at a time.")
    ] = "4",
    passes: Annotated[int, typer.Option("--passes", min=1, max=20, help="Restarts with each budget.")] = 2,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100, help="Rounds after each restart.")] = 4,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Leave the service with what is best for the first concurrency."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier sweep that was ended has measured.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The plots. [default: sweep-RUN.html]"),
    ] = None,
    playbook: Measuring = None,
    hosts: Hosts = None,
    yes: Yes = False,
    json_lines: Json = False,
) -> int:
    """Restart the service with each budget and the chain, measure, and say which is best at which load."""
    tried, loads = numbers(budgets, "--budgets", 1, 4096), numbers(concurrency, "--concurrency", 1, 100_000)
    inventory = inputs.load_hosts(hosts)
    host = inputs.single(inventory.resolve(target), "sweep", f" --budgets {budgets}")
    base = gates.measuring(playbook, [host], "sweep")
    baseline = base.steps[-2].options
    options = {
        **{key: baseline[key] for key in ("prompts", "tokens", "max_new_tokens", "bench", "hang_after_s")},
        "budgets": tried,
        "concurrency": loads,
        "passes": passes,
        "rounds": rounds,
        "apply": apply,
        "fresh": fresh,
    }
    arms = (len(tried) + 1) * passes
    book = gates.restarting(base, Step("sweep", "sweep", arms * gates.RESTART_S, options))
    inputs.require_consent(yes, f"sweep {target} --budgets {budgets}")

    done = gates.run(inventory, target, book, json_lines, ask=not yes)
    outcome = done.outcomes[0]
    result = outcome.results.get("sweep")
    if outcome.exit_code == 0 and result and not json_lines:
        from ddtree_deploy.report import html  # its libraries are needed for nothing else here

        path = output or Path(f"sweep-{outcome.run}.html")
        try:
            print("\n".join(lines(host.name, result)))
            found = bundle.load(bundle.find(bundle.runs_folder(inventory.file), outcome.run))
            html.write(found, path, field="-o")
            print(f"the plots: {path}")
        except Exception as error:  # what the host has said is no less true for it
            why = (error if isinstance(error, DeployError) else bug(error)).message
            complain(f"{path}: the plots were not written: {why}; next: ddtree-deploy report {outcome.run}")
    return done.exit_code


def numbers(text: str, flag: str, least: int, most: int) -> list[int]:
    """`4,8,16` -> [4, 8, 16]; each once, in the given order. Raises InputError."""
    if not re.fullmatch(r"\s*\d{1,6}(\s*,\s*\d{1,6})*\s*", text):
        raise InputError(f"{text!r} is not a list of numbers such as 4,8,16", field=flag)
    found = list(dict.fromkeys(int(part) for part in text.split(",")))
    for number in found:
        if not least <= number <= most:
            chain = "; the chain is measured in any case" if number == CHAIN else ""
            raise InputError(f"{number} is not between {least} and {most}{chain}", field=flag)
    return found


def lines(host: str, result: dict[str, Any]) -> list[str]:
    """The table, the best of each concurrency, and the launch argument."""
    cells = [HEADER, *(_cells(row) for row in result["rows"])]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADER))]
    out = ["", *("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells), ""]
    out += moved_hosts(result["rows"])
    out.append(f"restarts spread by {result['restart']['sd']:.1%} ({result['restart']['source']})")
    for row in result["best"]:
        arm = "the chain" if row["budget"] == CHAIN else f"budget {row['budget']}"
        also = f" (not told from {', '.join(map(str, row['equals']))})" if row["equals"] else ""
        out.append(f"best at concurrency {row['concurrency']}: {arm}{also}")
    out.append(f"  --speculative-ddtree-budget-schedule {result['schedule']}")
    out.append(f"in hosts.yaml of {host}: launch: {{set: {{{_setting(result)}}}}}")
    return out


def moved_hosts(rows: list[dict[str, Any]]) -> list[str]:
    """The budgets whose rounds say nothing, because the host ran at another speed then."""
    found = {r["budget"]: r["host_percent"] for r in rows if r["host_moved"]}
    return [
        f"budget {budget}: not compared, the host itself ran {abs(percent):.0f} % "
        f"{'slower' if percent < 0 else 'faster'} than during the chain's rounds: --fresh, when it is quiet"
        for budget, percent in sorted(found.items())
    ]


def _setting(result: dict[str, Any]) -> str:
    budgets = {row["budget"] for row in result["best"]}
    if budgets == {CHAIN}:
        return "speculative-algorithm: DFLASH"
    if len(budgets) == 1:
        return f"speculative-algorithm: DDTREE, speculative-ddtree-budget: {budgets.pop()}"
    return f'speculative-algorithm: DDTREE, speculative-ddtree-budget-schedule: "{result["schedule"]}"'


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    low_high = row["interval"]
    return (
        str(row["concurrency"]),
        "chain" if row["budget"] == CHAIN else str(row["budget"]),
        f"{row['output_tokens_per_s']:.1f}",
        "" if row["ratio"] is None else f"{row['ratio']:.3f}",
        "" if low_high is None else f"{low_high[0]:.3f} - {low_high[1]:.3f}",
        "-" if row["accept_length"] is None else f"{row['accept_length']:.3f}",
        f"{row['ttft_ms']:.1f}",
        f"{row['tpot_ms']:.2f}",
    )
