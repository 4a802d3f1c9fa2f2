"""An SSH host for one user, in Python, for machines without OpenSSH's server.

Run as ``python -m ddtree_deploy.sandbox.asyncssh_server CONFIG``, where CONFIG is a JSON file with
``address``, ``port``, ``host_key``, ``authorized_keys``, ``home`` and ``environment``.  It serves commands,
SFTP and scp, on public keys only; it has no interactive shell, no PAM and no other users.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Any

import asyncssh

CHUNK = 65536
LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def serve(config: dict[str, Any]) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    home = Path(config["home"])
    environment = session_environment(home, config["environment"])

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        await _run(process, home, environment)

    server = await asyncssh.create_server(
        asyncssh.SSHServer,
        config["address"],
        config["port"],
        server_host_keys=[config["host_key"]],
        authorized_client_keys=config["authorized_keys"],
        process_factory=run,
        sftp_factory=_Sftp,
        allow_scp=True,
        encoding=None,
        password_auth=False,
        kbdint_auth=False,
        keepalive_interval=15,
        login_timeout=20,
    )
    async with server:
        await stop.wait()


def session_environment(home: Path, extra: dict[str, str]) -> dict[str, str]:
    """What a session starts with: a login's few variables, nothing of the server's own environment."""
    base = {
        "PATH": LOGIN_PATH,
        "HOME": str(home),
        "USER": getpass.getuser(),
        "LOGNAME": getpass.getuser(),
        "SHELL": _shell(),
        "LANG": "C.UTF-8",
    }
    return base | extra


class _Sftp(asyncssh.SFTPServer):
    def exit(self) -> None:
        # OpenSSH's scp takes a channel that closes without an exit status for a failure.
        self.channel.exit(0)


async def _run(process: asyncssh.SSHServerProcess[bytes], home: Path, environment: dict[str, str]) -> None:
    if process.command is None:
        process.stderr.write(b"this host runs commands only: it has no interactive shell\n")
        process.exit(1)
        return
    peer = process.get_extra_info("peername") or ("", 0)
    local = process.get_extra_info("sockname") or ("", 0)
    origin = {
        "SSH_CLIENT": f"{peer[0]} {peer[1]} {local[1]}",
        "SSH_CONNECTION": f"{peer[0]} {peer[1]} {local[0]} {local[1]}",
    }
    child = await asyncio.create_subprocess_exec(
        _shell(),
        "-c",
        process.command,
        cwd=home,
        env=environment | origin,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    stdin = asyncio.create_task(_feed(process.stdin, child.stdin))
    # The exit status may leave only after both streams have: a client that has it stops reading.
    await asyncio.gather(_drain(child.stdout, process.stdout), _drain(child.stderr, process.stderr))
    status = await child.wait()
    stdin.cancel()
    if status >= 0:
        process.exit(status)
    else:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))


async def _feed(source: asyncssh.SSHReader[bytes], target: asyncio.StreamWriter) -> None:
    broken = (asyncssh.BreakReceived, asyncssh.SignalReceived, OSError)
    with contextlib.suppress(*broken):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    target.close()


async def _drain(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
    # Reads on after the client is gone: the command must not die of a full pipe.
    while data := await source.read(CHUNK):
        with contextlib.suppress(OSError):
            target.write(data)
            await target.drain()


def _shell() -> str:
    return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
