"""Start and stop an SSH server on loopback, of either flavour, for the sandbox and for tests.

with SshServer(folder, 2222, home) as server:
    connect(server.address, server.port, server.user, server.identity, server.known_hosts)
"""

from __future__ import annotations

import getpass
import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ddtree_deploy.sandbox import keys, openssh, processes
from ddtree_deploy.sandbox.errors import PortTaken, SandboxError
from ddtree_deploy.sandbox.processes import Process

Flavour = Literal["auto", "openssh", "asyncssh"]
START_TIMEOUT = 60.0
STATE = "server.json"


class SshServer:
    """An SSH host for the current user: own keys, own known_hosts, own HOME, loopback only.

    Args:
        folder: where keys, configuration, log and state are kept; made if missing.
        port: TCP port.
        home: HOME and working folder of every session; made if missing.
        address: the loopback address to listen on; all of 127/8 can be used on Linux.
        flavour: ``openssh``, ``asyncssh``, or ``auto``: OpenSSH where sshd is installed, else asyncssh.
        environment: further variables of every session.
        known_hosts: file to write the host key to; ``folder/known_hosts`` by default.
        key_folder: where the keys lie; ``folder/keys`` by default.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        home: Path,
        *,
        address: str = "127.0.0.1",
        flavour: Flavour = "auto",
        environment: Mapping[str, str] | None = None,
        known_hosts: Path | None = None,
        key_folder: Path | None = None,
    ) -> None:
        if not address.startswith("127."):
            raise SandboxError(f"the sandbox listens on loopback only, not on {address}", stage="ssh")
        self.folder = folder.absolute()
        self.home = home.absolute()
        self.address = address
        self.port = port
        self.flavour = choose(flavour)
        self.known_hosts = known_hosts or self.folder / "known_hosts"
        self.keys = keys.Keys(key_folder or self.folder / "keys")
        self.user = getpass.getuser()
        self.log = self.folder / "sshd.log"
        self._environment = {"HOME": str(self.home), **(environment or {})}
        self._state = self.folder / STATE
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def identity(self) -> Path:
        """The private key that this server lets in."""
        return self.keys.identity

    @property
    def process(self) -> Process | None:
        """The listening process, whoever started it, or None when it does not run."""
        return _listening(read_state(self.folder))

    @property
    def pid(self) -> int | None:
        """Process id of the listener, or None when it does not run."""
        process = self.process
        return process.pid if process else None

    def start(self) -> bool:
        """Start the server and wait until it answers with its banner.

        Returns:
            True if it was started, False if it was running already with this very configuration.

        Raises:
            PortTaken: somebody else listens on the port.
            SandboxError: the server refused its configuration, ended, or did not answer in time.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        self.keys = keys.ensure(self.keys.folder)
        line = keys.known_hosts_line(self.address, self.port, self.keys.host_public_key())
        self.known_hosts.write_text(line)
        command, digest = self._configure()
        state = read_state(self.folder)
        if _listening(state) and state["digest"] == digest:
            return False
        self.stop()
        check_free(self.address, self.port, what="SSH")
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._child = child
        process = processes.find(child.pid)
        if process is not None:
            state = {"pid": process.pid, "started": process.started, "digest": digest}
            self._state.write_text(json.dumps({**state, "port": self.port, "flavour": self.flavour}))
        try:
            self._wait_for_banner(child)
        except SandboxError:
            self.stop()
            raise
        return True

    def stop(self, *, grace: float = 10.0) -> list[Process]:
        """End the listener and all its sessions; returns what could not be ended (nothing, normally)."""
        process = self.process
        if process is None:
            self._state.unlink(missing_ok=True)
            self._reap()
            return []
        sessions = processes.descendants(process.pid)
        remaining = processes.end([process], grace=grace)
        remaining += processes.end(sessions, grace=grace)
        self._reap()
        if not remaining:
            self._state.unlink(missing_ok=True)
        return remaining

    def __enter__(self) -> SshServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _configure(self) -> tuple[list[str], str]:
        if self.flavour == "openssh":
            sshd = openssh.find_sshd()
            if sshd is None:
                raise SandboxError("OpenSSH's server (sshd) is not installed here", stage="ssh")
            session = self.folder / "session.sh"
            session.write_text(openssh.SESSION_SCRIPT)
            session.chmod(0o755)
            config_file = self.folder / "sshd_config"
            text = openssh.config(
                address=self.address,
                port=self.port,
                keys=self.keys,
                session=session,
                environment=self._environment,
                use_pam=openssh.needs_pam(),
                sftp_server=openssh.sftp_server(),
            )
            config_file.write_text(text)
            openssh.prepare(sshd, config_file)
            command = [sshd, "-D", "-e", "-f", str(config_file)]
        else:
            config_file = self.folder / "asyncssh.json"
            text = json.dumps(
                {
                    "address": self.address,
                    "port": self.port,
                    "host_key": str(self.keys.host_key),
                    "authorized_keys": str(self.keys.authorized_keys),
                    "home": str(self.home),
                    "environment": self._environment,
                },
                indent=1,
            )
            config_file.write_text(text)
            command = [sys.executable, "-m", "ddtree_deploy.sandbox.asyncssh_server", str(config_file)]
        identity = "\n".join([*command, text, self.keys.host_public_key()])
        return command, hashlib.sha256(identity.encode()).hexdigest()

    def _wait_for_banner(self, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if child.poll() is not None:
                raise SandboxError(
                    f"the SSH server ended at once (exit status {child.returncode}): {self._log_tail()}",
                    stage="ssh",
                    next_command=f"less {self.log}",
                )
            if (banner := _banner(self.address, self.port)).startswith(b"SSH-"):
                return
            if banner:
                break
            time.sleep(0.02)
        raise SandboxError(
            f"nothing that speaks SSH answered on {self.address}:{self.port} within {START_TIMEOUT:.0f} s: "
            f"{self._log_tail()}",
            stage="ssh",
            next_command=f"less {self.log}",
        )

    def _log_tail(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError:
            return "no log"
        return " | ".join([line.strip() for line in lines if line.strip()][-3:]) or "the log is empty"

    def _reap(self) -> None:
        if self._child is not None:
            try:
                self._child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                return
            self._child = None


def running(folder: Path) -> str:
    """The flavour of the server of this folder that runs now; empty when none does."""
    state = read_state(folder)
    return str(state["flavour"]) if _listening(state) else ""


def read_state(folder: Path) -> dict[str, Any]:
    """What the last start wrote down, or nothing."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        return {}
    return state


def _listening(state: dict[str, Any]) -> Process | None:
    process = Process(state["pid"], state["started"]) if state else None
    return process if process and process.alive else None


def choose(flavour: Flavour) -> Literal["openssh", "asyncssh"]:
    """The flavour that will run here.

    Raises:
        SandboxError: neither OpenSSH's server nor asyncssh is installed, or not the one that was asked for.
    """
    if flavour in ("auto", "openssh") and openssh.find_sshd():
        return "openssh"
    if flavour in ("auto", "asyncssh") and find_spec("asyncssh"):
        return "asyncssh"
    wanted = {"openssh": "OpenSSH's sshd", "asyncssh": "asyncssh"}.get(flavour, "neither sshd nor asyncssh")
    raise SandboxError(
        f"{wanted} is installed here" if flavour == "auto" else f"{wanted} is not installed here",
        stage="ssh",
        next_command="apt-get install openssh-server, or: pip install 'ddtree-deploy[sandbox]'",
    )


def check_free(address: str, port: int, *, what: str) -> None:
    """Raise PortTaken, naming the holder where it can be seen, unless the port can be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            holder = processes.listener(port)
            by = f" by process {holder.pid} ({holder.command()[:80]})" if holder else ""
            raise PortTaken(
                f"{what} port {port} cannot be used: taken{by}" if by else f"{what} port {port}: {error}",
                stage="ssh" if what == "SSH" else "service",
                state="nothing was started",
            ) from None


def _banner(address: str, port: int) -> bytes:
    try:
        with socket.create_connection((address, port), timeout=5) as connection:
            return connection.recv(255)
    except OSError:
        return b""
