"""The command line. Thin: parse, call, print, exit code. Never a traceback."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from ddtree_deploy.commands import evidence, gates_cli, sandbox
from ddtree_deploy.commands.options import Hosts, Json, Target, Yes
from ddtree_deploy.errors import DeployError, Interrupted
from ddtree_deploy.running import next_command
from ddtree_deploy.text import safe, shortened

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

AnyTarget = Annotated[str | None, typer.Argument(help="A host or a group of hosts.yaml.", show_default=False)]
PayloadDir = Annotated[
    Path | None, typer.Option("--payload", metavar="DIR", help="The payload (default: payload).")
]
PlaybookFile = Annotated[
    Path | None,
    typer.Option("--playbook", metavar="FILE", help="The steps (default: playbooks/ACTION.yaml)."),
]
AcceptDrift = Annotated[
    bool,
    typer.Option(
        "--accept-drift",
        help="Replace files that are neither upstream's nor ours; they are kept in the backup.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"ddtree-deploy {metadata.version('ddtree-deploy')}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def rollout(  # noqa: PLR0917
    target: Target,
    playbook: PlaybookFile = None,
    payload: PayloadDir = None,
    hosts: Hosts = None,
    accept_drift: AcceptDrift = False,
    yes: Yes = False,
    json_lines: Json = False,
) -> None:
    """Bring the payload onto hosts, through every gate; a failed gate puts the host back as it was."""
    from ddtree_deploy.commands import run

    code = run.rollout(
        target,
        hosts=hosts,
        payload=payload,
        playbook=playbook,
        accept_drift=accept_drift,
        yes=yes,
        json_lines=json_lines,
    )
    raise typer.Exit(code)


@app.command()
def rollback(  # noqa: PLR0917
    target: AnyTarget = None,
    to: Annotated[
        str, typer.Option("--to", metavar="RELEASE", help="A release (see `releases`), or `base`.")
    ] = "",
    playbook: PlaybookFile = None,
    hosts: Hosts = None,
    accept_drift: AcceptDrift = False,
    yes: Yes = False,
    json_lines: Json = False,
) -> None:
    """Go back to what the last rollout found. Without TARGET: on the hosts of the last rollout from here."""
    from ddtree_deploy.commands import run

    code = run.rollback(
        target,
        hosts=hosts,
        playbook=playbook,
        to=to,
        accept_drift=accept_drift,
        yes=yes,
        json_lines=json_lines,
    )
    raise typer.Exit(code)


@app.command()
def plan(  # noqa: PLR0917
    target: Target,
    playbook: PlaybookFile = None,
    payload: PayloadDir = None,
    hosts: Hosts = None,
    accept_drift: AcceptDrift = False,
    json_lines: Json = False,
) -> None:
    """Show what a rollout would change: files with their diffs, launch command, steps. Touches nothing."""
    from ddtree_deploy.commands import look

    code = look.plan(
        target,
        hosts=hosts,
        payload=payload,
        playbook=playbook,
        accept_drift=accept_drift,
        json_lines=json_lines,
        say=typer.echo,
        warn=_complain,
    )
    raise typer.Exit(code)


@app.command()
def status(
    target: AnyTarget = None,
    payload: PayloadDir = None,
    hosts: Hosts = None,
    json_lines: Json = False,
) -> None:
    """Show release, live files (base, ours, foreign), service and lock. Without TARGET: of all hosts."""
    from ddtree_deploy.commands import look

    code = look.status(
        target, hosts=hosts, payload=payload, json_lines=json_lines, say=typer.echo, warn=_complain
    )
    raise typer.Exit(code)


@app.command()
def drift(target: Target, payload: PayloadDir = None, hosts: Hosts = None, json_lines: Json = False) -> None:
    """Show each live file as base, ours (of a release) or foreign, with a diff. Exit 6 if one has moved."""
    from ddtree_deploy.commands import look

    code = look.drift(
        target, hosts=hosts, payload=payload, json_lines=json_lines, say=typer.echo, warn=_complain
    )
    raise typer.Exit(code)


@app.command()
def releases(target: Target, hosts: Hosts = None, json_lines: Json = False) -> None:
    """List what was rolled out on a host: time, digest, who, verdict, and where `rollback --to` can go."""
    from ddtree_deploy.commands import look

    code = look.releases(target, hosts=hosts, json_lines=json_lines, say=typer.echo, warn=_complain)
    raise typer.Exit(code)


@app.command()
def attach(target: Target, hosts: Hosts = None, json_lines: Json = False) -> None:
    """Follow the run that is on a host now, to its verdict."""
    from ddtree_deploy.commands import mend

    raise typer.Exit(mend.attach(target, hosts=hosts, json_lines=json_lines))


@app.command()
def recover(target: Target, hosts: Hosts = None, json_lines: Json = False) -> None:
    """Finish or undo what a dead run left on a host."""
    from ddtree_deploy.commands import mend

    raise typer.Exit(mend.recover(target, hosts=hosts, json_lines=json_lines))


@app.command()
def unlock(
    target: Target,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="End the run that holds the host: asked to undo; after --wait killed and recovered.",
        ),
    ] = False,
    wait: Annotated[
        int, typer.Option("--wait", metavar="SECONDS", min=1, help="How long its own undo may take.")
    ] = 600,
    hosts: Hosts = None,
    json_lines: Json = False,
) -> None:
    """Show who holds a host, since when, at which step; with --force, end that run."""
    from ddtree_deploy.commands import mend

    code = mend.unlock(target, hosts=hosts, force=force, patience_s=wait, json_lines=json_lines)
    raise typer.Exit(code)


@app.command()
def trust(
    target: Target,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="SHA256:...", help="Accept this key, and no other."),
    ] = None,
    hosts: Hosts = None,
) -> None:
    """Put a host's SSH key into its known_hosts file, after it was compared."""
    from ddtree_deploy.commands import mend

    raise typer.Exit(mend.trust(target, hosts=hosts, fingerprint=fingerprint))


@app.command("payload-digest")
def payload_digest(
    patch: Annotated[Path, typer.Argument(metavar="PATCH", help="A unified diff.", show_default=False)],
    upstream: Annotated[
        Path, typer.Argument(metavar="UPSTREAM_FILE", help="What it is made against.", show_default=False)
    ],
) -> None:
    """Print the lines `base:` and `result:` that payload.yaml needs for a patch of an upstream file."""
    from ddtree_deploy.inputs.payload import digest_lines

    typer.echo(digest_lines(patch, upstream), nl=False)


gates_cli.register(app)
evidence.register(app)
sandbox.register(app)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line. Returns the exit code; every error is one line on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    next_command.remember(words)
    try:
        # Not `app(...)`: that has its own ways with an interrupt and a closed pipe.
        with get_command(app).make_context("ddtree-deploy", list(words)) as context:
            code = context.command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except DeployError as error:
        _complain(error.render())
        if "--json" in words:
            from ddtree_deploy.commands.look import error_event

            typer.echo(json.dumps(error_event(error)))
        return error.exit_code
    except (KeyboardInterrupt, EOFError):
        _complain(Interrupted("interrupted", state="nothing was touched").render())
        return Interrupted.exit_code
    except (BrokenPipeError, SystemExit):  # rich makes the one of the other; nothing else raises that here
        # Whoever read our output (head, less) has gone; the flush at exit must not complain.
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115, PTH123
        return 0
    except Exception as error:
        return _usage(error) if hasattr(error, "format_message") else _bug(error)
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> int:
    """A wrong command line. Known by its shape: typer has its own class for it since it left click."""
    message = str(error.format_message()).strip()
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed instead
        if message:
            typer.echo(message)
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ddtree-deploy"
    _complain(f"{message.rstrip('.')}; nothing was touched; next: {command} --help")
    return 2


def _bug(error: Exception) -> int:
    with tempfile.NamedTemporaryFile(
        "w", prefix="ddtree-deploy-bug-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.write(f"ddtree-deploy {sys.argv[1:]}\nPython {sys.version}\n\n{traceback.format_exc()}")
    what = str(error).strip().splitlines()
    _complain(
        f"unexpected {type(error).__name__}: {what[0] if what else 'no message'}; this is a bug, the "
        f"traceback is in {log.name}; next: ddtree-deploy status (a run that had begun goes on by itself)"
    )
    return 1


def _complain(line: str) -> None:
    print(f"ddtree-deploy: {shortened(safe(next_command.typed(line), 100_000))}", file=sys.stderr, flush=True)
