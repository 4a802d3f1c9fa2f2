"""The command line. Thin: parse, call, print, exit code. Never a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from ddtree_deploy import streams
from ddtree_deploy.commands import evidence, gates, inspect, recover, sandbox, sweep
from ddtree_deploy.commands.failures import error_event
from ddtree_deploy.commands.run import rollback, rollout
from ddtree_deploy.errors import NOTHING_DONE, DeployError, Interrupted
from ddtree_deploy.inputs.payload import digest_lines
from ddtree_deploy.running import next_command, sight
from ddtree_deploy.running.complaint import bug, complain

app = typer.Typer(
    name="ddtree-deploy",
    help="Staged, gated, self-undoing rollouts of the DDTree modules into SGLang on remote GPU hosts.",
    epilog="Exit codes: 0 passed, 1 gate failed (host as before), 2 bad input, 3 host needs a person, "
    "4 unreachable, 5 locked, 6 drift, 7 inconclusive, 8 contact lost (host goes on), 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        print(f"ddtree-deploy {metadata.version('ddtree-deploy')}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


COMMANDS: tuple[Callable[..., int], ...] = (
    rollout,
    rollback,
    inspect.plan,
    inspect.status,
    inspect.drift,
    inspect.releases,
    recover.attach,
    recover.recover,
    recover.unlock,
    recover.trust,
)
GATES: tuple[Callable[..., int], ...] = (
    gates.verify,
    gates.bench,
    gates.calibrate,
    gates.confirm,
    sweep.sweep,
)


def payload_digest(
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="A unified diff.", show_default=False)],
    upstream: Annotated[
        Path, typer.Argument(metavar="UPSTREAM_FILE", help="What it is made against.", show_default=False)
    ],
) -> int:
    """Print the lines `base:` and `result:` that payload.yaml needs for a patch of an upstream file."""
    print(digest_lines(patch, upstream), end="")
    return 0


for command in (*COMMANDS, payload_digest, *GATES):
    app.command()(command)
golden = typer.Typer(help="Greedy answers of a server known to be right.", no_args_is_help=True)
golden.callback()(lambda: None)  # with one command only, it would be that command
golden.command("record")(gates.record_golden)
app.add_typer(golden, name="golden")
evidence.register(app)
sandbox.register(app)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line. Returns the exit code; every error is one line on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    next_command.remember(words)
    sight.forget()
    try:
        # Not `app(...)`: that has its own ways with an interrupt and a closed pipe.
        with get_command(app).make_context("ddtree-deploy", list(words)) as context:
            code = context.command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except DeployError as error:
        complain(error.render())
        if "--json" in words:
            print(json.dumps(error_event(error)))
        return sight.exit_code(error.exit_code)
    except (KeyboardInterrupt, EOFError):
        state = "the host goes on by itself" if sight.known() else NOTHING_DONE
        complain(Interrupted("interrupted", state=state).render())
        return sight.exit_code(Interrupted.exit_code)
    except BaseException as error:
        if hasattr(error, "format_message"):
            return _usage(error)
        found = bug(error)
        complain(found.render())
        return sight.exit_code(found.exit_code)
    return code if isinstance(code, int) else 0


def finished(code: int) -> int:
    """The exit code once all is written. Lost output is a failure, but where `code` tells of hosts."""
    why = streams.lost()
    if why:
        complain(f"the output is incomplete: {why}")
        return sight.exit_code(code or 1)
    return code


def _usage(error: Any) -> int:
    """A wrong command line. Known by its shape: typer has its own class for it since it left click."""
    message = str(error.format_message()).strip()
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed instead
        if message:
            print(message)
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ddtree-deploy"
    complain(f"{message.rstrip('.')}; nothing was touched; next: {command} --help")
    return 2
