"""Working through sudo: without a password where the host allows that, else with one that is asked for once.

Whether sudo lets us through is seen by whether Python begins behind it, never by its words, which are in any
language. What it says is shown as it says it; words that are known tell what it means, and save a question.

The password goes over the command's stdin, ahead of the command's own input. `-k` makes sudo ask in any case:
else, with a login that it remembers, it would leave the line to the program. It is kept in this process only.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from typing import Protocol

from ddtree_deploy.errors import TransportError
from ddtree_deploy.ssh.errors import transport_error
from ddtree_deploy.ssh.host import SshHost, login_name
from ddtree_deploy.ssh.stream import Finished
from ddtree_deploy.text import safe

SUDO = "sudo"
ENGLISH = "env LC_ALL=C "  # where nothing but sudo's words is wanted
SHELL_MARK = "DDTREE-SHELL"
CHECK_S = 60.0
NOT_OF_SUDO = (None, 0, 126, 127)  # how a command ends that sudo has let through, or that is no sudo
_passwords: dict[str, str] = {}  # by name of the host

PASSWORD_WANTED = (
    "a password is required",
    "a terminal is required to read the password",
    "no password was provided",
    "interactive authentication is required",
)
PASSWORD_WRONG = ("incorrect password attempt", "incorrect authentication attempt", "authentication failed")
MEANINGS = (
    ("must have a tty", "`requiretty` in its sudoers keeps every program out"),
    ("not in the sudoers", "nothing in its sudoers is about this user"),
    ("is not allowed to", "its sudoers does not let this user run that"),
    ("may not run sudo", "its sudoers does not let this user run that"),
    ("afraid i can't do that", "its sudoers does not let this user run that"),
    ("expired", "the account or its password has expired"),
    ("account validation failure", "the account is locked or has expired"),
    ("no new privileges", "what logs in there may not become another user"),
    ("setuid bit", "sudo is not installed as a program that may become root"),
    ("effective uid is not 0", "sudo may not become root, as on a filesystem with nosuid"),
    ("no valid sudoers", "its sudoers cannot be used"),
)


class Runs(Protocol):
    """What runs a command on a host: a `Link`."""

    host: SshHost

    def run(self, command: str, *, timeout: float, stage: str) -> Finished: ...
    def command(self, python: str, *args: str) -> str: ...


def words(host: SshHost) -> list[str]:
    """What stands before a command on this host."""
    if not host.become:
        return []
    return [SUDO, "-k", "-S", "-p", "''", "--"] if host.name in _passwords else [SUDO, "-n"]


def first_input(host: SshHost, command: str) -> bytes:
    """What a command reads before its own input."""
    password = _passwords.get(host.name)
    if not host.become or password is None:
        return b""
    if not command.removeprefix(ENGLISH).startswith(" ".join(words(host))):
        return b""
    return password.encode() + b"\n"


def wanted(host: SshHost, done: Finished) -> bool:
    """Whether a command that never began may have failed for want of a password, and none was given yet."""
    return host.become and host.name not in _passwords and done.rc not in NOT_OF_SUDO


def ask(link: Runs, python: str, refused: Finished, prompt: Callable[[str], str] = getpass.getpass) -> bool:
    """Get the password and try it: first those that other hosts took, then one from the terminal.

    refused: how the command ended. Returns False, and asks nobody, where it was not sudo that ended it.

    Raises TransportError where nobody can be asked, or sudo does not let us through.
    """
    host, said = link.host, last_line(refused.err)
    if not _about_password(said) and not meaning(refused.err)[1]:
        tried = link.run(f"echo {SHELL_MARK}; {ENGLISH}{_idle(link, python)}", timeout=CHECK_S, stage="sudo")
        if tried.rc == 0:
            return True
        past_sudo = tried.rc in NOT_OF_SUDO or pythons_own(tried.err, python)
        if past_sudo or SHELL_MARK.encode() not in tried.out:
            return False  # login shell or interpreter
        refused, said = tried, last_line(tried.err)
    if meaning(refused.err)[1]:
        raise refusal(host, refused.err)
    for password in dict.fromkeys(_passwords.values()):
        if _takes(link, python, password) is None:
            return True
    who = login_name(host)
    if not sys.stdin.isatty():
        needs = f"become: true needs sudo without a password for {who}, or a terminal to ask for it"
        raise _error(host, f"{needs}; it says: {said or 'nothing'}")
    failed = _takes(link, python, prompt(f"{host.name}: password of {who} for sudo: "))
    if failed is not None:
        raise refusal(host, failed)
    return True


def refusal(host: SshHost, err: bytes) -> TransportError:
    """That sudo did not let us through: its own last line, and what it means, as far as that is known."""
    said, who = last_line(err), login_name(host)
    telling, means = meaning(err)
    if means:
        said = said if telling == said else f"{telling} {said}"
        return _error(host, f"become: true, and sudo refuses {who}: {said} ({means})")
    if any(word in said.lower() for word in PASSWORD_WRONG):
        return _error(host, f"sudo did not take the password of {who}: {said}")
    if host.name not in _passwords and _about_password(said):
        return _error(host, f"become: true needs sudo without a password for {who}: {said}")
    return _error(host, f"become: true, and sudo refuses {who}: {said or 'it said nothing'}")


def meaning(err: bytes) -> tuple[str, str]:
    """The line in which sudo says why it refuses, and what that means; empty where that is not known.

    It need not be the last one: of an expired account sudo says so, and then that it wants a password.
    """
    lines = [safe(line.strip(), 300) for line in err.decode(errors="replace").splitlines()]
    for line in [last_line(err), *(line for line in lines if line.startswith("sudo"))]:
        for word, means in MEANINGS:
            if word in line.lower():
                return line, means
    return "", ""


def last_line(err: bytes) -> str:
    """The last line that says something."""
    lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
    return safe(lines[-1].strip(), 300) if lines else ""


def _about_password(text: str) -> bool:
    return any(word in text.lower() for word in (*PASSWORD_WANTED, *PASSWORD_WRONG))


def pythons_own(err: bytes, python: str) -> str:
    """The line that says that the interpreter is missing, which sudo says in the shell's stead, or broken."""
    lines = (safe(line, 300) for line in err.decode(errors="replace").splitlines())
    missing = f"{python.removeprefix('~')}: command not found"
    return next((line for line in lines if missing in line or "Fatal Python error" in line), "")


def _idle(link: Runs, python: str) -> str:
    """A command that does nothing, by the very program that sudo is to let us run."""
    return link.command(python, "-I", "-S", "-c", "0")


def _takes(link: Runs, python: str, password: str) -> bytes | None:
    """None where sudo takes the password, which is kept then; else what sudo wrote.

    Raises TransportError where it refuses for another reason: no other password helps.
    """
    name = link.host.name
    _passwords[name] = password
    taken = False
    try:
        done = link.run(ENGLISH + _idle(link, python), timeout=CHECK_S, stage="sudo")
        taken = done.rc == 0 or bool(pythons_own(done.err, python))
    finally:
        if not taken:
            del _passwords[name]
    if not taken and meaning(done.err)[1]:
        raise refusal(link.host, done.err)
    return None if taken else done.err


def _error(host: SshHost, message: str) -> TransportError:
    error = transport_error(host, "sudo", message)
    error.next_command = f"ssh -t -p {host.port} {login_name(host)}@{host.address} sudo -l"
    return error
