"""A host of the matrix with all that its user has: hosts.yaml, playbooks, a payload, the command line."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.lab.controller import Result, Running
from tests.lab.hosts import PATIENCE, Host, Lab, wait_for
from tests.lab.image import Image
from tests.lab.matrix.commands import ForkingController
from tests.lab.matrix.looks import Look, Reference, classify, journal, look, place_probe
from tests.lab.matrix.strike import TIME_OUT
from tests.lab.payloads import make_payload, write_playbooks

LAUNCH = {"set": {"speculative-algorithm": "DDTREE", "speculative-ddtree-budget": "16"}}
DISK_MB = 64
# Up in every state, over two levels; and enabled, so that a boot brings them, too.
BESIDE = {
    "lab-requires.service": "Requires=sglang.service\nAfter=sglang.service",
    "lab-part.target": "PartOf=sglang.service",
    "lab-second.service": "BindsTo=lab-requires.service\nAfter=lab-requires.service",
}
COMPARING = ("baseline", "tokens", "acceptance", "benchmark")
# The least that still runs every gate; the matrix is about instants, not about figures.
FAST = {
    "baseline": {
        "prompts": "prompts.jsonl",
        "tokens": 2,
        "max_new_tokens": 4,
        "bench": {"num_prompts": 2, "concurrency": 1, "output_len": 4, "rounds": 1, "min_round": "0s"},
    },
    "soak": {"requests": 2, "concurrency": 1, "max_new_tokens": 4},
    "health": {"requests": 2, "need": 2, "max_new_tokens": 4, "deadline": "60s"},
}
_making = threading.Lock()  # the lab adds and removes one host at a time


@dataclass
class Shape:
    """What a step says in a run without faults: events between its start and its verdict, and its seconds."""

    events: int
    seconds: float


@dataclass
class Known:
    """What all hosts share: how one looks before and after, and the shape of the steps of each action."""

    states: dict[str, Reference] = field(default_factory=dict)
    shapes: dict[tuple[str, str], Shape] = field(default_factory=dict)


def with_dependents() -> Image:
    """A host on which other units go down with the service."""
    files = {}
    for name, unit in BESIDE.items():
        run = "" if name.endswith(".target") else "[Service]\nExecStart=/bin/sleep infinity\n"
        text = f"[Unit]\n{unit}\n{run}[Install]\nWantedBy=multi-user.target\n"
        files[f"/etc/systemd/system/{name}"] = text
    return Image(files=files, started=tuple(BESIDE))


class Target:
    """One host, replaced by a new one when a cell has left it broken."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        known: Known,
        sources: Path | None = None,
        *,
        image: Image | None = None,
    ) -> None:
        self.lab, self.folder, self.known, self.sources = lab, folder, known, sources
        self.image = image or Image()
        self.host: Host
        self.state = "before"
        self.cells = 0
        self.renew(first=True)

    def renew(self, *, first: bool = False) -> None:
        """A fresh host, and a fresh folder of its user."""
        with _making:
            if not first:
                self.lab.remove(self.host)
            self.host = self.lab.host(self.image, disk_mb=DISK_MB)
        if self.image.enabled:
            wait_for(self.host.generates, f"tokens from {self.host.name}")
        place_probe(self.host)
        self.user = self.folder / self.host.name
        self.controller = ForkingController(self.user, [self.host], self.sources)
        entry = self.host.inventory()
        entry["service"] |= {
            "launch": LAUNCH,
            "stop": {"drain": "5s", "limit": "20s"},
            "start": {"stalled_after": "60s", "limit": "120s"},
        }
        self.controller.write_hosts({self.host.name: entry})
        # Where no service runs before, there is nothing to compare with, and a rollout would refuse to.
        write_playbooks(self.user, **(FAST if self.image.enabled else FAST | dict.fromkeys(COMPARING)))
        self.payload = make_payload(self.user / "payload")
        self.state = "before"

    def close(self) -> None:
        with _making:
            self.lab.remove(self.host)

    def start(self, command: str, *, short_step: str = "") -> Running:
        """Start a command as a user types it. `short_step`: this step's time runs out soon."""
        words = [self.host.name]
        if command == "plan":
            words += ["--payload", str(self.payload), "--playbook", str(self._playbook("rollout", ""))]
        if command in ("rollout", "rollback"):
            words += ["--yes", "--playbook", str(self._playbook(command, short_step))]
        if command == "rollout":
            words += ["--payload", str(self.payload)]
        return self.controller.start(command, *words)

    def run(self, command: str) -> Result:
        return self.start(command).finish()

    def _playbook(self, name: str, short_step: str) -> Path:
        file = self.user / f"{name}.yaml"
        if not short_step:
            return file
        book = yaml.safe_load(file.read_text())
        book["steps"] = [_shortened(step, short_step) for step in book["steps"]]
        short = self.user / f"{name}-short.yaml"
        short.write_text(yaml.safe_dump(book, sort_keys=False))
        return short

    def settle(self) -> None:
        """Wait until nothing of ours runs on the host, and its service is up or down for good."""
        if not self.host.on:
            return
        deadline = time.monotonic() + PATIENCE
        wait_for(self._quiet, f"the runs on {self.host.name} to be over")
        while time.monotonic() < deadline:
            if self.host.generates() or self.host.unit()["ActiveState"] in ("inactive", "failed"):
                return
            time.sleep(0.2)

    def _quiet(self) -> bool:
        groups = [p.name for p in (self.host.cgroup / "payload/system.slice").glob("ddtree-deploy*")]
        under = ["user.slice", *(f"system.slice/{name}" for name in groups)]
        for pid in (pid for group in under for pid in self.host.pids(group)):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"runner.pyz" in words and b"\0follow\0" not in words:
                return False
        return True

    def look(self) -> Look:
        return look(self.host)

    def learn(self) -> None:
        """A rollout and a rollback without faults: how the host looks then, and what each step says."""
        for action, state in (("rollout", "after"), ("rollback", "before")):
            if action == "rollout":
                self.known.states["before"] = Reference.of(self.look())
            done = self.run(action).expect(0)
            seen = self.look()
            if action == "rollout":
                self.known.states["after"] = Reference.of(seen)
            found = classify(seen, self.known.states)
            if found != state:
                wrong = self.known.states[state].differences(seen)
                raise AssertionError(f"after a {action} without faults: {wrong}")
            self._shapes(action, done.outcome["run"])

    def _shapes(self, action: str, run: str) -> None:
        (path,) = self.host.path("/var/lib/ddtree-deploy").glob(f"sites/*/runs/{run}/journal.jsonl")
        events = journal(path)
        for verdict in (e for e in events if e["e"] == "verdict"):
            mine = [e for e in events if e.get("step") == verdict["step"]]
            said = [e for e in mine if e["e"] not in ("start", "verdict", "undo")]
            self.known.shapes[action, verdict["step"]] = Shape(len(said), float(verdict["seconds"]))


def _shortened(step: str | dict[str, Any], name: str) -> str | dict[str, Any]:
    kind = step if isinstance(step, str) else next(iter(step))
    options = {} if isinstance(step, str) else dict(step[kind])
    return {kind: options | {"timeout": TIME_OUT}} if kind == name else step
