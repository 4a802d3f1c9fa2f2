"""The files a command works on: found from the current folder, or named by a flag."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import inventory, payload, playbook
from ddtree_deploy.inputs.inventory import Host, Inventory
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook

HOSTS = Path("hosts.yaml")
PAYLOAD = Path("payload")
PLAYBOOKS = Path("playbooks")


def load_hosts(given: Path | None) -> Inventory:
    """hosts.yaml. Raises InputError, naming the flag where the default is missing."""
    return inventory.load(_existing(given, HOSTS, "--hosts FILE"))


def load_payload(given: Path | None) -> Payload:
    """The payload folder."""
    return payload.load(_existing(given, PAYLOAD, "--payload DIR"))


def load_rollout(given: Path | None, hosts: Iterable[Host]) -> Playbook:
    """The playbook of a rollout: the one given, else the one hosts.yaml names for them, else the usual."""
    named = {host.playbook for host in hosts}
    if given is None and len(named) > 1:
        shown = ", ".join(sorted(str(path or PLAYBOOKS / "rollout.yaml") for path in named))
        raise InputError(
            f"hosts.yaml names different playbooks for these hosts ({shown})",
            next_command="the same command with --playbook FILE, or one host after another",
        )
    return load_playbook(given or next(iter(named), None), "rollout")


def load_playbook(given: Path | None, action: str) -> Playbook:
    """The playbook: playbooks/ACTION.yaml unless another is named; for another action: InputError."""
    book = playbook.load(_existing(given, PLAYBOOKS / f"{action}.yaml", "--playbook FILE"))
    playbook.expect_action(book, action)
    return book


def single(hosts: list[Host], command: str, flags: str = "") -> Host:
    """The only one of the chosen hosts, for a command that takes one. Raises InputError."""
    if len(hosts) != 1:
        raise InputError(
            f"{command} takes one host, the group has {len(hosts)}: {', '.join(h.name for h in hosts)}",
            next_command=f"ddtree-deploy {command} {hosts[0].name}{flags}",
        )
    return hosts[0]


def _existing(given: Path | None, default: Path, flag: str) -> Path:
    path = given or default
    try:
        if path.exists():
            return path
    except OSError:
        pass  # such as: the name is too long
    if given is None:
        raise InputError(
            f"there is no {default} in {Path.cwd()}",
            next_command=f"go to the folder that has it, or name it: {flag}",
        )
    raise InputError("no such file or folder", file=path, field=flag.split(maxsplit=1)[0])


def require_consent(yes: bool, command: str) -> None:
    """Raise InputError unless --yes was given or somebody can be asked."""
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError(
            "there is no terminal to ask on; --yes goes on without asking",
            next_command=shlex.join(["ddtree-deploy", *shlex.split(command), "--yes"]),
        )


def require_terminal(command: str) -> None:
    """Raise InputError, with the command that needs no answer, unless somebody can be asked."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("there is no terminal to ask on", next_command=f"ddtree-deploy {command}")


def ask(question: str) -> bool:
    """A yes or no from the terminal; anything else, also its end, is no."""
    try:
        print(f"{question} [y/N] ", end="", flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except OSError:
        return False
