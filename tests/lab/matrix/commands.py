"""The product's command line as forks of one process that has imported it already.

Each command is a process of its own, in the controller's network and in a session of its own, and is
signalled and killed as such; what is saved is the second that Python needs to import the SSH libraries.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from tests.lab.controller import Controller, Running
from tests.lab.hosts import Host

ROOT = Path(__file__).parents[3]


class Forked:
    """A fork with the part of subprocess.Popen that `Running` needs."""

    def __init__(self, told: socket.socket, out: IO[str], err: IO[str]) -> None:
        self._told, self.stdout, self.stderr = told, out, err
        self._lock = threading.Lock()
        self._lines = told.makefile("rb", buffering=0)
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._status(timeout)
        if code is None:
            raise TimeoutError(f"command {self.pid} has not ended after {timeout} s")
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _status(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
                self.returncode = os.waitstatus_to_exitcode(int(self._lines.readline()))
                self._lines.close()
                self._told.close()
            return self.returncode


class _Server:
    """The process that commands are forks of; it ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.lab.matrix.forkserver"],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                start_new_session=True,  # a Ctrl-C is for the tests
            )
        atexit.register(self.end)

    def fork(self, request: dict[str, object], out: int, err: int, told: int) -> None:
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [out, err, told])

    def end(self) -> None:
        self._requests.close()
        self._process.wait(60)


_server: list[_Server] = []


def prepare() -> None:
    """Start the process that all commands are forks of."""
    if not _server:
        _server.append(_Server())


def fork(
    arguments: list[str],
    folder: Path,
    *,
    namespace: str = "",
    sources: Path | None = None,
    env: dict[str, str] | None = None,
) -> Forked:
    """Start `ddtree-deploy ARGUMENTS` in `folder`, and in a network namespace if one is named.

    `env` is added to the environment that all forks have.
    """
    prepare()
    request: dict[str, object] = {
        "arguments": arguments,
        "namespace": namespace,
        "folder": str(folder),
        "sources": str(sources or ""),
        "env": env or {},
    }
    out, out_child = os.pipe()
    err, err_child = os.pipe()
    told, told_child = socket.socketpair()
    with told_child:
        _server[0].fork(request, out_child, err_child, told_child.fileno())
    os.close(out_child)
    os.close(err_child)
    return Forked(told, os.fdopen(out), os.fdopen(err))


class ForkingController(Controller):
    """A `Controller` whose commands are forks. `sources`: a folder to pack instead of `onhost/`."""

    def __init__(self, folder: Path, hosts: Iterable[Host], sources: Path | None = None) -> None:
        super().__init__(folder, hosts)
        self.sources = sources

    def start(self, command: str, *words: str, env: dict[str, str] | None = None) -> Running:
        arguments = [command, *words, "--hosts", str(self.folder / "hosts.yaml"), "--json"]
        there = self.lab.net.controller
        forked = fork(arguments, self.folder, namespace=there, sources=self.sources, env=env)
        return Running(forked, ["ddtree-deploy", *arguments])  # type: ignore[arg-type]
