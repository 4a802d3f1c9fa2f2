"""The product's command line as forks of one process that has imported it already.

Each command is a process of its own, in the controller's network and in its own process group, and is
killed as such; what is saved is the second that Python needs to import the SSH libraries.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from tests.lab import net
from tests.lab.controller import Controller, Running
from tests.lab.hosts import Host

ROOT = Path(__file__).parents[3]


def _command(
    arguments: list[str], *, namespace: str, folder: str, sources: str, out: Connection, err: Connection
) -> None:
    """In the child: become the command line."""
    os.setsid()
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from ddtree_deploy import cli
    from ddtree_deploy.running import zipapp

    if sources:  # a changed copy of onhost/, to prove that the checks see it
        zipapp.SOURCE = Path(sources)
    sys.argv = ["ddtree-deploy", *arguments]
    with net.inside(namespace):
        cli.main()


class Forked:
    """A fork with the part of subprocess.Popen that `Running` needs."""

    def __init__(self, process: Any, out: IO[str], err: IO[str]) -> None:
        self._process, self.stdout, self.stderr = process, out, err
        self.pid: int = process.pid

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise TimeoutError(f"command {self.pid} has not ended after {timeout} s")
        return code


_context = multiprocessing.get_context("forkserver")


def prepare() -> None:
    """Start the process that all commands are forks of. Needs this checkout as the current folder."""
    os.environ["PYTHONPATH"] = str(ROOT)
    _context.set_forkserver_preload(["tests.lab.matrix.preload"])


class ForkingController(Controller):
    """A `Controller` whose commands are forks. `sources`: a folder to pack instead of `onhost/`."""

    def __init__(self, folder: Path, hosts: Iterable[Host], sources: Path | None = None) -> None:
        super().__init__(folder, hosts)
        self.sources = sources

    def start(self, command: str, *words: str, env: dict[str, str] | None = None) -> Running:
        if env:
            raise ValueError("a fork has the environment of its parent")
        arguments = [command, *words, "--hosts", str(self.folder / "hosts.yaml"), "--json"]
        out, out_child = _context.Pipe(duplex=False)
        err, err_child = _context.Pipe(duplex=False)
        process = _context.Process(
            target=_command,
            args=(arguments,),
            kwargs={
                "namespace": self.lab.net.controller,
                "folder": str(self.folder),
                "sources": str(self.sources or ""),
                "out": out_child,
                "err": err_child,
            },
        )
        process.start()
        out_child.close()
        err_child.close()
        streams = [os.fdopen(os.dup(end.fileno()), "r") for end in (out, err)]
        out.close()
        err.close()
        return Running(Forked(process, *streams), ["ddtree-deploy", *arguments])  # type: ignore[arg-type]
