"""Start the runner so that it outlives the SSH session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..state import layout
from . import bounded, systemctl


def command(run_dir: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(run_dir / layout.RUNNER), "run", str(run_dir)]


def systemd_command(run_dir: Path) -> list[str]:
    """A transient unit of the system manager: the session does not end it; its stop is an orderly undo."""
    log = f"append:{run_dir / 'logs' / 'runner.log'}"
    properties = [
        "Type=exec",
        "KillMode=process",  # what the run starts (a supervised service) is not the unit's to end
        "TimeoutStopSec=300",
        "StandardInput=null",
        f"StandardOutput={log}",
        f"StandardError={log}",
        "OOMScoreAdjust=-500",
    ]
    return systemctl.transient(f"ddtree-deploy-{run_dir.name}", command(run_dir), properties, ["--collect"])


def start(run_dir: Path) -> None:
    """Start the runner of `run_dir`: a transient unit where that is possible, else a session of its own."""
    logs = run_dir / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    if systemctl.can_run():
        try:
            made = bounded.call(systemd_command(run_dir), seconds=30)
        except subprocess.TimeoutExpired:
            pass  # it may yet come; the runner's own lock keeps a second one out
        else:
            if made.returncode == 0:
                return
            (logs / "runner.log").write_text(made.stderr, encoding="utf-8")
    _fork(run_dir)


def _fork(run_dir: Path) -> None:
    """The classic double fork: the runner is init's child, in its own session, with no descriptor of ours."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        log = os.open(run_dir / "logs" / "runner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 256)
        os.chdir("/")
        argv = command(run_dir)
        os.execv(argv[0], argv)
    finally:
        os._exit(127)
