"""A rollout that stops before a step of the test's choice, so that a fault can be made exactly there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.lab.controller import Running
from tests.lab.hosts import Host, wait_for
from tests.lab.test_systemd_rollout import Deployment

GATE = "/run/lab-gate"
WAIT: dict[str, Any] = {
    "run": {
        "name": "gate",
        "command": ["/bin/sh", "-c", f"touch {GATE}.reached; until [ -e {GATE} ]; do sleep 0.05; done"],
        "timeout": "5m",
    }
}


class Gated(Deployment):
    """A deployment whose rollout (or rollback) waits before a step until `open`."""

    def gate(self, before: str, playbook: str = "rollout") -> None:
        file = self.folder / f"{playbook}.yaml"
        book = yaml.safe_load(file.read_text())
        names = [s if isinstance(s, str) else next(iter(s)) for s in book["steps"]]
        book["steps"].insert(names.index(before), WAIT)
        file.write_text(yaml.safe_dump(book, sort_keys=False))

    def begin(self, action: str = "rollout") -> Running:
        """Start; return when it waits at the gate."""
        words = ["--playbook", str(self.folder / f"{action}.yaml")]
        words += ["--payload", str(self.payload)] if action == "rollout" else []
        running = self.controller.start(action, self.host.name, "--yes", *words)
        running.step("gate")
        reached = f"test -e {GATE}.reached"
        wait_for(lambda: self.host.run(reached, check=False).returncode == 0, "the gate")
        return running

    def open(self) -> None:
        """Let it go on."""
        self.host.run(f"touch {GATE}")


def gated(host: Host, folder: Path, before: str, **more: Any) -> Gated:
    """A deployment on a host whose service generates, gated before one step."""
    wait_for(host.generates, "tokens")
    made = Gated(host, folder, **more)
    made.gate(before)
    return made
