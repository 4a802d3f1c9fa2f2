"""Where the parts of a sandbox lie, and on which ports it listens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddtree_deploy.sandbox.errors import SandboxError

SSH_PORT_VARIABLE, HTTP_PORT_VARIABLE = "DDTREE_SANDBOX_SSH_PORT", "DDTREE_SANDBOX_HTTP_PORT"
MARKER = "DDTREE_SANDBOX"  # in the environment of every process of a sandbox; its value is the folder
ADDRESS = "127.0.0.1"

HOSTS = """\
# Written by `ddtree-deploy sandbox up`, with the ports of this sandbox: ddtree-deploy ... --hosts {file}
hosts:
  sandbox:
    address: {address}
    port: {ssh}
    identity_file: keys/id
    known_hosts: known_hosts
    python: ~/venv/bin/python3
    state_dir: ~/.local/state/ddtree-deploy
    playbook: ../playbooks/sandbox.yaml
    service:
      kind: adopted
      endpoint: http://{address}:{http}
      launch:
        set: {{speculative-algorithm: DDTREE, speculative-ddtree-budget: 16}}
      start: {{stalled_after: 5m, limit: 15m}}
      stop: {{drain: 10s, limit: 1m}}
"""


@dataclass(frozen=True)
class Ports:
    """TCP ports on loopback."""

    ssh: int
    http: int


USUAL = Ports(ssh=2222, http=31000)


@dataclass(frozen=True)
class Layout:
    """The paths of one sandbox; all below ``folder``, which is absolute and without links."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> Layout:
        """The layout of the sandbox in this folder, which need not exist.

        Raises:
            SandboxError: the path holds a character that OpenSSH's configuration or a hosts file cannot.
        """
        resolved = folder.expanduser().resolve()
        if any(character in str(resolved) for character in '"\\\n'):
            raise SandboxError(f"the sandbox's folder may not hold a quote or a backslash: {resolved}")
        return cls(resolved)

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def ssh(self) -> Path:
        """Configuration, log and state of the SSH server."""
        return self.folder / "ssh"

    @property
    def home(self) -> Path:
        """HOME of the host's user."""
        return self.folder / "home"

    @property
    def venv(self) -> Path:
        return self.home / "venv"

    @property
    def service_log(self) -> Path:
        return self.home / "logs" / "sglang.log"

    @property
    def build_log(self) -> Path:
        return self.folder / "logs" / "build.log"

    @property
    def models(self) -> Path:
        return self.folder / "models"

    @property
    def hosts_file(self) -> Path:
        return self.folder / "hosts.yaml"

    @property
    def ports_file(self) -> Path:
        return self.folder / "ports.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    def recorded_ports(self) -> Ports | None:
        """The ports of the last `up`, or None when there was none."""
        try:
            data = json.loads(self.ports_file.read_text())
            return Ports(int(data["ssh"]), int(data["http"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def record(self, ports: Ports) -> None:
        """Write down the ports, and the hosts file that has them."""
        self.ports_file.write_text(json.dumps({"ssh": ports.ssh, "http": ports.http}) + "\n")
        self.hosts_file.write_text(hosts_text(self.hosts_file, ports))


def hosts_text(file: Path, ports: Ports) -> str:
    """The hosts file of a sandbox; its paths are relative to its folder."""
    return HOSTS.format(file=file, address=ADDRESS, ssh=ports.ssh, http=ports.http)


def choose_ports(
    ssh: int | None = None,
    http: int | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    usual: Ports = USUAL,
) -> Ports:
    """The ports to use: those given, else the environment's, else the usual ones.

    Raises:
        SandboxError: not a port number, or twice the same.
    """
    ports = Ports(
        _port(ssh, SSH_PORT_VARIABLE, usual.ssh, environment),
        _port(http, HTTP_PORT_VARIABLE, usual.http, environment),
    )
    if ports.ssh == ports.http:
        raise SandboxError(
            f"SSH and the server cannot both have port {ports.ssh}", state="nothing was started"
        )
    return ports


def _port(given: int | None, variable: str, usual: int, environment: Mapping[str, str]) -> int:
    text = str(given) if given is not None else environment.get(variable) or str(usual)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        name = "port" if given is not None else variable
        raise SandboxError(f"{name}: {text!r} is not a port number", state="nothing was started")
    return int(text)
