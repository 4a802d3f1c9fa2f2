"""Working through sudo: without a password where the host allows that, else with one that is asked for once.

The password goes over the command's stdin, ahead of the command's own input. `-k` makes sudo ask in any case:
else, with a login that it remembers, it would leave the line to the program. It is kept in this process only.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from typing import Protocol

from ddtree_deploy.ssh.errors import transport_error
from ddtree_deploy.ssh.host import SshHost, login_name
from ddtree_deploy.ssh.stream import Finished

SUDO = "sudo"
CHECK_S = 60.0
_passwords: dict[str, str] = {}  # by name of the host


class Runs(Protocol):
    """What runs a command on a host: a `Link`."""

    host: SshHost

    def run(self, command: str, *, timeout: float, stage: str) -> Finished: ...


def words(host: SshHost) -> list[str]:
    """What stands before a command on this host."""
    if not host.become:
        return []
    return [SUDO, "-k", "-S", "-p", "''", "--"] if host.name in _passwords else [SUDO, "-n"]


def first_input(host: SshHost, command: str) -> bytes:
    """What a command reads before its own input."""
    password = _passwords.get(host.name)
    if not host.become or password is None or not command.startswith(" ".join(words(host))):
        return b""
    return password.encode() + b"\n"


def wanted(host: SshHost, done: Finished) -> bool:
    """Whether a command failed because sudo wants a password, and none was given yet."""
    if not host.become or host.name in _passwords or done.rc != 1:
        return False
    return any(line.startswith("sudo: ") for line in done.err.decode(errors="replace").splitlines())


def ask(link: Runs, prompt: Callable[[str], str] = getpass.getpass) -> None:
    """Get the password and try it: first those that other hosts took, then one from the terminal.

    Raises TransportError where nobody can be asked, or sudo does not take it.
    """
    host = link.host
    for password in dict.fromkeys(_passwords.values()):
        if _takes(link, password):
            return
    who = login_name(host)
    if not sys.stdin.isatty():
        raise transport_error(
            host, "sudo", f"become: true needs sudo without a password for {who}, or a terminal to ask for it"
        )
    if not _takes(link, prompt(f"{host.name}: password of {who} for sudo: ")):
        raise transport_error(host, "sudo", f"sudo did not take the password of {who}")


def _takes(link: Runs, password: str) -> bool:
    name = link.host.name
    _passwords[name] = password
    try:
        taken = link.run(" ".join([*words(link.host), "true"]), timeout=CHECK_S, stage="sudo").rc == 0
    except BaseException:
        del _passwords[name]
        raise
    if not taken:
        del _passwords[name]
    return taken
