"""What is needed of a host to reach it."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Protocol

SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


class SshHost(Protocol):
    """What is needed of a host to reach it. Times in seconds."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def user(self) -> str | None: ...
    @property
    def identity_file(self) -> Path | None: ...
    @property
    def known_hosts(self) -> Path: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @property
    def become(self) -> bool: ...


def known_hosts_files(host: SshHost) -> list[Path]:
    """The files that may vouch for the host; the first is the one that `trust` writes."""
    own = Path("~/.ssh/known_hosts").expanduser()
    return [host.known_hosts, SYSTEM_KNOWN_HOSTS] if host.known_hosts == own else [host.known_hosts]


def login_name(host: SshHost) -> str:
    """The user to log in as: the host's, or whoever runs us."""
    return host.user or getpass.getuser()
