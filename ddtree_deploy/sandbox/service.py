"""The sandbox's service: SGLang on the CPU, serving the chain (DFLASH), as a plain process of the user."""

from __future__ import annotations

import getpass
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from ddtree_deploy.sandbox import processes
from ddtree_deploy.sandbox.errors import PortTaken, SandboxError
from ddtree_deploy.sandbox.layout import ADDRESS, MARKER, Layout
from ddtree_deploy.sandbox.processes import Process
from ddtree_deploy.sandbox.venv import python_of

Say = Callable[[str], None]

CHAIN = "DFLASH"
PROMPT, TOKENS = "The quick brown fox", 8
STALLED_AFTER = 300.0
LIMIT = 1800.0
NEWS_EVERY = 5.0
ANSWER_TIMEOUT = 60.0
GRACE = 15.0  # between asking the processes to end and insisting


@dataclass(frozen=True)
class Running:
    """The service as it is now.

    Attributes:
        process: the process that listens on the port.
        algorithm: ``speculative_algorithm`` of ``/server_info``; empty where it does not answer.
    """

    process: Process
    algorithm: str


def command(layout: Layout, port: int) -> list[str]:
    """The command line of the chain."""
    return [
        str(python_of(layout.venv)),
        *("-m", "sglang.launch_server"),
        *("--model-path", str(layout.models / "target")),
        *("--speculative-algorithm", CHAIN),
        *("--speculative-draft-model-path", str(layout.models / "draft_half")),
        *("--device", "cpu", "--dtype", "float32"),
        *("--attention-backend", "cpu_tree"),
        *("--host", ADDRESS, "--port", str(port)),
        *("--max-running-requests", "8", "--max-total-tokens", "8192", "--mem-fraction-static", "0.1"),
        "--disable-cuda-graph",
        "--sleep-on-idle",  # else its scheduler spins on one of two cores for ever
    ]


def environment(layout: Layout) -> dict[str, str]:
    """The whole environment of the service: that of a login on this host, and what a CPU server needs."""
    return {
        "HOME": str(layout.home),
        "USER": getpass.getuser(),
        "LOGNAME": getpass.getuser(),
        "SHELL": "/bin/sh",
        "PATH": f"{layout.venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        MARKER: str(layout.folder),
        # Two threads on two cores are slower, and three times as unsteady.
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": "lo",
        # SGLang renames its processes, which by default overwrites what /proc shows of their environment.
        "SPT_NOENV": "1",
        "no_proxy": f"{ADDRESS},localhost",
    }


def find(layout: Layout, port: int) -> Running | None:
    """The sandbox's server on this port, or None when nothing listens.

    Raises:
        PortTaken: somebody else listens there.
    """
    process = processes.listener(port)
    if process is None:
        return None
    if process not in members(layout):
        raise PortTaken(
            f"port {port} is taken by process {process.pid} ({process.command()[:80]}), "
            "which is not of this sandbox",
            stage="service",
            next_command="DDTREE_SANDBOX_HTTP_PORT=PORT ddtree-deploy sandbox up",
        )
    return Running(process, algorithm(port))


def members(layout: Layout) -> list[Process]:
    """Every process of this sandbox but the SSH listener: the service, sessions and what they started."""
    return processes.with_environment(MARKER, str(layout.folder))


def launched(layout: Layout) -> Process | None:
    """The process of ``sglang.launch_server``, listening or not yet."""
    servers = [process for process in members(layout) if "sglang.launch_server" in process.command()]
    return min(servers, key=lambda process: process.started, default=None)


def tree(layout: Layout) -> list[Process]:
    """The processes of the service: all of its session, so that orphans of it count too."""
    server = launched(layout)
    if server is None:
        return []
    session = processes.session(server.pid)
    return [process for process in members(layout) if processes.session(process.pid) == session]


def start(layout: Layout, port: int) -> Process:
    """Start the chain in a session of its own, as ``nohup`` in a terminal would; returns at once.

    The log of the last service is kept beside the new one, as ``sglang.log.1``.
    """
    layout.service_log.parent.mkdir(parents=True, exist_ok=True)
    if layout.service_log.exists():
        layout.service_log.replace(layout.service_log.with_suffix(".log.1"))
    with layout.service_log.open("ab") as log:
        child = subprocess.Popen(
            command(layout, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=layout.home,
            env=environment(layout),
            start_new_session=True,
        )
    process = processes.find(child.pid)
    if process is None:
        raise SandboxError(f"the service ended at once: {log_tail(layout)}", stage="service")
    return process


def wait_ready(
    layout: Layout, process: Process, port: int, say: Say, *, stalled_after: float = STALLED_AFTER
) -> float:
    """Wait until it generates tokens.

    Args:
        process: the one that `start` gave.
        stalled_after: seconds without a new line in the log or an answer, after which it is given up.

    Returns:
        Seconds that it took.

    Raises:
        SandboxError: it ended, stalled, or answered without tokens; its last log lines are in the message.
    """
    began = news = progress = time.monotonic()
    seen = -1
    while not processes.wait_ended(process, 0.5):
        if processes.listener(port) is not None and generates(port):
            return time.monotonic() - began
        now = time.monotonic()
        size = _size(layout.service_log)
        if size != seen:
            seen, progress = size, now
        if now - progress > stalled_after or now - began > LIMIT:
            raise SandboxError(
                f"no answer from the service after {now - began:.0f} s: {log_tail(layout)}",
                stage="service",
                state="the service is left as it is",
                next_command=f"less {layout.service_log}",
            )
        if now - news >= NEWS_EVERY:
            news = now
            say(f"service: starting, {now - began:.0f} s: {log_tail(layout, 1)[:100]}")
    raise SandboxError(
        f"the service ended while it started: {log_tail(layout)}",
        stage="service",
        state="it does not run",
        next_command=f"less {layout.service_log}",
    )


def generates(port: int) -> bool:
    """Whether a greedy request of our own comes back with all its tokens."""
    parameters = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    answer = _ask(port, "/generate", {"text": PROMPT, "sampling_params": parameters})
    return len(answer.get("output_ids", [])) == TOKENS


def algorithm(port: int) -> str:
    """The server's speculative algorithm, ``none`` without one, empty where it does not answer."""
    answer = _ask(port, "/server_info")
    return str(answer.get("speculative_algorithm") or "none") if answer else ""


def log_tail(layout: Layout, lines: int = 3) -> str:
    """The last lines of the service's log, in one line."""
    try:
        with layout.service_log.open("rb") as stream:
            stream.seek(max(0, _size(layout.service_log) - 8192))
            text = stream.read().decode(errors="replace")
    except OSError:
        return "no log"
    stripped = (line.strip() for line in text.replace("\r", "\n").split("\n"))
    found = [line for line in stripped if line and not line.startswith("warnings.warn(")]
    return " | ".join(found[-lines:]) or "the log is empty"


def _ask(port: int, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The parsed answer, or an empty one where none came."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://{ADDRESS}:{port}{path}", data, {"Content-Type": "application/json"})
    direct = build_opener(ProxyHandler({}))
    try:
        with direct.open(request, timeout=ANSWER_TIMEOUT) as response:
            answer = json.load(response)
    except (URLError, OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
