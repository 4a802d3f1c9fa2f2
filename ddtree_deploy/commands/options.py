"""Arguments and flags that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Argument(help="A host or a group of hosts.yaml.", show_default=False)]
Hosts = Annotated[
    Path | None, typer.Option("--hosts", metavar="FILE", help="The hosts (default: hosts.yaml).")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Events as JSON lines on stdout (docs/events.md).")]
