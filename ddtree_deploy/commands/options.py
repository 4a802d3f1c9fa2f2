"""Arguments and flags that several commands take. A command returns its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Argument(help="A host or a group of hosts.yaml.", show_default=False)]
AnyTarget = Annotated[str | None, typer.Argument(help="A host or a group of hosts.yaml.", show_default=False)]
PayloadDir = Annotated[
    Path | None, typer.Option("--payload", metavar="DIR", help="The payload (default: payload).")
]
PlaybookFile = Annotated[
    Path | None,
    typer.Option("--playbook", metavar="FILE", help="The steps (default: playbooks/ACTION.yaml)."),
]
Measuring = Annotated[
    Path | None,
    typer.Option(
        "--playbook",
        metavar="FILE",
        help="Its baseline says what is measured (default: playbooks/rollout.yaml).",
    ),
]
AcceptDrift = Annotated[
    bool,
    typer.Option(
        "--accept-drift",
        help="Replace files that are neither upstream's nor ours; they are kept in the backup.",
    ),
]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="DIGEST",
        help="Refuse any plan but this one, which `plan` printed; once for each host.",
    ),
]
Hosts = Annotated[
    Path | None, typer.Option("--hosts", metavar="FILE", help="The hosts (default: hosts.yaml).")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Events as JSON lines on stdout (docs/events.md).")]
