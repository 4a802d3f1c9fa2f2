"""The command lines of verify, bench, golden record, calibrate, confirm and sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddtree_deploy.commands.options import Hosts, Json, Target, Yes

Book = Annotated[
    Path | None,
    typer.Option(
        "--playbook",
        metavar="FILE",
        help="Its baseline says what is measured (default: playbooks/rollout.yaml).",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("verify")(verify)
    app.command("bench")(bench)
    app.command("calibrate")(calibrate)
    app.command("confirm")(confirm)
    app.command("sweep")(sweep)
    golden = typer.Typer(help="Greedy answers of a server known to be right.", no_args_is_help=True)
    golden.callback()(_golden)
    golden.command("record")(record)
    app.add_typer(golden, name="golden")


def _golden() -> None:
    pass


def verify(
    target: Target,
    playbook: Annotated[
        Path | None,
        typer.Option("--playbook", metavar="FILE", help="The gates (default: playbooks/verify.yaml)."),
    ] = None,
    golden: Annotated[
        Path | None,
        typer.Option(
            "--golden", metavar="FILE", help="What tokens are compared with (default: of `golden record`)."
        ),
    ] = None,
    hosts: Hosts = None,
    json_lines: Json = False,
) -> None:
    """Ask the running service through every gate. Nothing is installed, stopped or started."""
    from ddtree_deploy.commands import gates

    code = gates.verify(target, hosts=hosts, playbook=playbook, golden_file=golden, json_lines=json_lines)
    raise typer.Exit(code)


def bench(target: Target, playbook: Book = None, hosts: Hosts = None, json_lines: Json = False) -> None:
    """Measure the running service: greedy counters, then rounds of SGLang's own benchmark client."""
    from ddtree_deploy.commands import gates

    raise typer.Exit(gates.bench(target, hosts=hosts, playbook=playbook, json_lines=json_lines))


def record(
    target: Target,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="[default: .ddtree-deploy/golden/HOST.json]"),
    ] = None,
    playbook: Book = None,
    hosts: Hosts = None,
    json_lines: Json = False,
) -> None:
    """Record what the running service says, token by token; ask one that is known to be right."""
    from ddtree_deploy.commands import gates

    code = gates.record_golden(target, hosts=hosts, playbook=playbook, output=output, json_lines=json_lines)
    raise typer.Exit(code)


def calibrate(  # noqa: PLR0917
    target: Target,
    restarts: Annotated[int, typer.Option("--restarts", metavar="N", help="At least 6.")] = 6,
    playbook: Book = None,
    hosts: Hosts = None,
    yes: Yes = False,
    json_lines: Json = False,
) -> None:
    """Restart the unchanged service N times and keep how much its speed differs, for the benchmark gate."""
    from ddtree_deploy.commands import gates

    code = gates.calibrate(
        target, hosts=hosts, playbook=playbook, restarts=restarts, yes=yes, json_lines=json_lines
    )
    raise typer.Exit(code)


def confirm(target: Target, hosts: Hosts = None, json_lines: Json = False) -> None:
    """Call the release good that a rollout left held, because a gate could not decide."""
    from ddtree_deploy.commands import gates

    raise typer.Exit(gates.confirm(target, hosts=hosts, json_lines=json_lines))


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
    playbook: Book = None,
    hosts: Hosts = None,
    yes: Yes = False,
    json_lines: Json = False,
) -> None:
    """Restart the service with each budget and the chain, measure, and say which is best at which load."""
    from ddtree_deploy.commands import sweep as command

    code = command.sweep(
        target,
        hosts=hosts,
        playbook=playbook,
        budgets=budgets,
        concurrency=concurrency,
        passes=passes,
        rounds=rounds,
        apply=apply,
        fresh=fresh,
        output=output,
        yes=yes,
        json_lines=json_lines,
    )
    raise typer.Exit(code)
