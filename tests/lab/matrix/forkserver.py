"""A process that has imported the command line once; each command is a fork of it. Its stdin is a socket.

One message is one command: JSON {"arguments", "folder", "namespace", "sources", "env"} and three descriptors:
stdout, stderr, and a socket that is told the command's pid, once it leads its own session, and its wait
status.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ddtree_deploy.cli  # noqa: F401
from ddtree_deploy import entry
from ddtree_deploy.running import zipapp
from tests.lab import net

MOST_BYTES = 65536


def serve(requests: socket.socket) -> Callable[[], object] | None:
    """Fork a child for each message. Returns in each child, with what it is to run; None at the end."""
    running: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, whom to tell
    while True:
        ready, _, _ = select.select([requests.fileno(), *running], [], [])
        for pidfd in ready:
            if pidfd == requests.fileno():
                continue
            pid, told = running.pop(pidfd)
            os.close(pidfd)
            with told:
                told.sendall(b"%d\n" % os.waitpid(pid, 0)[1])
        if requests.fileno() not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not data:
            return None
        told = socket.socket(fileno=fds[2])
        pid = os.fork()
        if pid == 0:
            requests.close()
            for pidfd, (_, other) in running.items():
                os.close(pidfd)
                other.close()
            return _become(json.loads(data), fds[0], fds[1], told)
        os.close(fds[0])
        os.close(fds[1])
        running[os.pidfd_open(pid)] = (pid, told)


def _become(request: dict[str, Any], out: int, err: int, told: socket.socket) -> Callable[[], object]:
    """In the child: all that a fresh process would have of its own; what is left to call is the command."""
    os.setsid()
    with told:
        told.sendall(b"%d\n" % os.getpid())
    null = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((null, 0), (out, 1), (err, 2)):
        os.dup2(old, new)
        os.close(old)
    os.chdir(str(request["folder"]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(request["env"])
    if request["sources"]:  # a copy of onhost/, perhaps changed to prove that the checks see it
        zipapp.SOURCE = Path(str(request["sources"]))
    sys.argv = ["ddtree-deploy", *request["arguments"]]
    if request["namespace"]:
        net.enter_for_good(str(request["namespace"]))
    return entry.main


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # else the first collection in each child copies every page
    forked = serve(socket.socket(fileno=os.dup(0)))
    if forked is not None:
        forked()  # ends as the console script does
