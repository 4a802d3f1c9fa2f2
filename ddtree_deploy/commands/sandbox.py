"""sandbox up, down, status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where the sandbox lies.")]
Json = Annotated[bool, typer.Option("--json", help="The state as one JSON line on stdout.")]
FOLDER = Path(".sandbox")


def register(app: typer.Typer) -> None:
    """Add `sandbox` to the command line."""
    group = typer.Typer(help="A host on this machine, to try everything on.", no_args_is_help=True)
    group.command("up")(up)
    group.command("down")(down)
    group.command("status")(status)
    app.add_typer(group, name="sandbox")


def up(  # noqa: PLR0917
    folder: Folder = FOLDER,
    ssh_port: Annotated[int | None, typer.Option(help="Of the SSH server (default: 2222).")] = None,
    http_port: Annotated[int | None, typer.Option(help="Of SGLang (default: 31000).")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Interpreter for the sandbox's venv.")
    ] = None,
    torch_index_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Package index with CPU builds of torch.")
    ] = None,
    fresh_service: Annotated[
        bool, typer.Option("--fresh-service", help="Start the chain anew where another service runs.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing, also before a large download.")
    ] = False,
    json_lines: Json = False,
) -> None:
    """Make what is missing and start what does not run: SSH server, venv, models, SGLang with the chain."""
    from ddtree_deploy import sandbox
    from ddtree_deploy.commands.inputs import ask

    found = sandbox.up(
        folder=folder,
        say=_say(json_lines),
        ssh_port=ssh_port,
        http_port=http_port,
        python=python,
        torch_index_url=torch_index_url,
        confirm=None if yes or not sys.stdin.isatty() else ask,
        fresh_service=fresh_service,
    )
    if json_lines:
        print(json.dumps({"e": "sandbox", **found.to_dict()}))
    else:
        print("next: ddtree-deploy rollout sandbox")


def down(
    folder: Folder = FOLDER,
    purge: Annotated[bool, typer.Option("--purge", help="Remove the folder too, with its venv.")] = False,
) -> None:
    """End every process of the sandbox; its venv and models stay unless --purge is given."""
    from ddtree_deploy import sandbox

    sandbox.down(folder=folder, say=print, purge=purge)


def status(folder: Folder = FOLDER, json_lines: Json = False) -> None:
    """Say how the sandbox is. Exit code 1 when a part of it is down."""
    from ddtree_deploy import sandbox

    found = sandbox.status(folder=folder, say=_say(json_lines))
    if json_lines:
        print(json.dumps({"e": "sandbox", **found.to_dict()}))
    raise typer.Exit(0 if found.ssh and found.venv == "ready" and found.service else 1)


def _say(json_lines: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        print(line, file=sys.stderr if json_lines else sys.stdout)

    return say
