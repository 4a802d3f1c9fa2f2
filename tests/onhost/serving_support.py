"""A run folder with a plan, and the fake server, for tests of the serving steps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddtree_deploy.onhost import steps
from ddtree_deploy.onhost.context import Context
from ddtree_deploy.onhost.run.undo import undo_all
from ddtree_deploy.onhost.service.base import ServiceControl
from ddtree_deploy.onhost.service.kind import control
from ddtree_deploy.onhost.service.process.spawn import MARK
from ddtree_deploy.onhost.state.journal import Journal, read
from ddtree_deploy.onhost.wire.protocol import Launch, Plan, Service, StepSpec
from tests.onhost.host import sha
from tests.ports import free_port

FAKE = Path(__file__).parent.parent / "lab" / "fake_sglang.py"
DEADLINE_S = 300.0


def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Wait for an event with a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


@dataclass
class Lab:
    """One host: a state folder, a fake server on a port, runs with plans for it."""

    root: Path
    port: int
    runs: int = 0
    started: list[int] = field(default_factory=list)

    @property
    def site(self) -> Path:
        return self.root / "state" / "sites" / "k"

    @property
    def mood_file(self) -> Path:
        return self.root / "mood.json"

    def mood(self, **moods: Any) -> None:
        self.mood_file.write_text(json.dumps(moods))

    def command(self, *flags: str) -> list[str]:
        fixed = ["--port", str(self.port), "--fake-control", str(self.mood_file)]
        return [sys.executable, str(FAKE), *fixed, *flags]

    def service(self, kind: str = "supervised", **changes: Any) -> Service:
        data: dict[str, Any] = {
            "name": "sglang",
            "kind": kind,
            "endpoint": f"http://127.0.0.1:{self.port}",
            "start_stalled_after_s": 30.0,
            "start_limit_s": 60.0,
            "drain_s": 5.0,
            "stop_limit_s": 20.0,
        }
        return Service(**{**data, **changes})

    def plan(self, service: Service | None, specs: list[StepSpec], **changes: Any) -> Plan:
        self.runs += 1
        data: dict[str, Any] = {
            "protocol": 1,
            "run": f"20260101T00000{self.runs}-{sha(str(self.root))[:6]}",  # its processes are found by it
            "action": "rollout",
            "host": "lab",
            "who": "tester",
            "created": "2026-01-01T00:00:00Z",
            "python": sys.executable,
            "state_dir": str(self.root / "state"),
            "site": str(self.root / "venv"),
            "package_dir": str(self.root / "venv" / "sglang"),
            "payload_name": "p",
            "payload_version": "1",
            "variant": "v",
            "payload_digest": "0" * 64,
            "release": "r",
            "targets": [],
            "steps": specs,
            "service": service,
        }
        return Plan(**{**data, **changes})

    def context(self, service: Service | None, *kinds: str | StepSpec, **changes: Any) -> Context:
        """A fresh run; steps named as their kinds, or given."""
        specs = [StepSpec(k, k, 120.0) if isinstance(k, str) else k for k in kinds or ("start",)]
        plan = self.plan(service, specs, **changes)
        run_dir = self.site / "runs" / plan.run
        (run_dir / "logs").mkdir(parents=True)
        journal = Journal(run_dir / "journal.jsonl")
        return Context(plan, run_dir, journal, specs[0], time.monotonic() + 120.0)

    def start_by_hand(self, *flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """As a person would with nohup: not by this tool."""
        p = subprocess.Popen(
            self.command(*flags),
            env={"PATH": os.environ["PATH"], **(env or {})},
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.started.append(p.pid)
        until(lambda: port_open(self.port) or p.poll() is not None, "the server listens")
        return p

    def clean(self) -> None:
        """End everything that carries our state folder or fixture's mark, by pid."""
        sites = str(self.site).encode()
        mine = str(self.mood_file).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    env, argv = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
                    if (MARK.encode() in env and sites in env) or mine in argv:
                        os.kill(int(entry.name), signal.SIGKILL)
        for pid in self.started:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def port_open(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1.0)
        return s.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def lab_at(root: Path) -> Iterator[Lab]:
    lab = Lab(root, free_port())
    lab.mood()
    try:
        yield lab
    finally:
        lab.clean()


def do(ctx: Context, name: str) -> str:
    """Run one step of the plan as the runner does; its exceptions come through."""
    ctx.step = next(s for s in ctx.plan.steps if s.name == name)
    ctx.deadline = time.monotonic() + ctx.step.timeout_s
    reason = steps.load(ctx.step.kind).do(ctx)
    assert isinstance(reason, str)
    return reason


def undo(ctx: Context) -> list[str]:
    """Undo and check all steps with intents, from the journal. Returns the failures."""
    intents: dict[str, list[dict[str, Any]]] = {}
    for event in read(ctx.journal.path)[0]:
        if event["e"] == "intent":
            intents.setdefault(event["step"], []).append(event["undo"])
    return undo_all(ctx, intents)


def of(ctx: Context) -> ServiceControl:
    """The control, as a step would make it."""
    assert ctx.plan.service is not None
    return control(ctx.plan.service, ctx.state_dir, ctx.plan.secrets)


def launch(lab: Lab, *flags: str, **edits: Any) -> Launch:
    return Launch(command=lab.command(*flags), **edits)


def journal_text(ctx: Context) -> str:
    return ctx.journal.path.read_text()
