"""The product's command line, run in the controller's network of a lab, watched by its own JSON events."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.lab.hosts import PATIENCE, Host, LabError

Event = dict[str, Any]


@dataclass
class Result:
    """How a command ended. `events` are the JSON lines of stdout; lines that are none fail the parse."""

    argv: list[str]
    code: int
    events: list[Event]
    stderr: str

    @property
    def outcome(self) -> Event:
        """The outcome of the only host."""
        (found,) = [event for event in self.events if event["e"] == "outcome"]
        return found

    def expect(self, code: int, step: str = "") -> Result:
        """This, if it ended with `code` (at `step`); else an AssertionError with all that it said."""
        if self.code != code or (step and self.outcome["step"] != step):
            raise AssertionError(f"expected exit {code}{f' at {step}' if step else ''}: {self}")
        return self

    def verdicts(self) -> dict[str, str]:
        """Step -> verdict, in order."""
        return {e["step"]: e["verdict"] for e in self.events if e["e"] == "verdict" and e.get("step")}

    def __str__(self) -> str:
        lines = "\n".join(json.dumps(event) for event in self.events[-25:])
        return f"{' '.join(self.argv)}\nexit {self.code}\n{lines}\n{self.stderr}"


@dataclass
class Running:
    """A command under way. Its process leads a group, so that it can be killed with all that it started."""

    process: subprocess.Popen[str]
    argv: list[str]
    seen: list[Event] = field(default_factory=list)
    _queue: queue.Queue[str | None] = field(default_factory=queue.Queue)
    _stderr: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def _errors(self) -> None:
        assert self.process.stderr is not None
        self._stderr.extend(self.process.stderr)

    def until(self, wanted: Callable[[Event], bool], what: str, timeout: float = PATIENCE) -> Event:
        """The next event that is `wanted`. The command is killed when time runs out before."""
        deadline = time.monotonic() + timeout
        while (event := self._next(deadline, what)) is not None:
            if wanted(event):
                return event
        raise LabError(f"the command ended before {what}: {self.finish()}")

    def step(self, name: str, kind: str = "start") -> Event:
        """Wait until a step starts (or, with another `kind`, for that event of it)."""
        return self.until(lambda e: e["e"] == kind and e.get("step") == name, f"{kind} of {name}")

    def _next(self, deadline: float, what: str) -> Event | None:
        try:
            line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self.signal(signal.SIGKILL)
            raise LabError(f"waited too long for {what}: {self.seen[-5:]} {self._stderr}") from None
        if line is None:
            return None
        self.seen.append(json.loads(line))
        return self.seen[-1]

    def signal(self, sig: signal.Signals) -> None:
        """Signal the whole group, as a terminal or a CI system does."""
        os.killpg(self.process.pid, sig)

    def finish(self, timeout: float = 3 * PATIENCE) -> Result:
        """Wait for the end."""
        deadline = time.monotonic() + timeout
        while self._next(deadline, "the end of the command") is not None:
            pass
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join(timeout)
        return Result(self.argv, code, self.seen, "".join(self._stderr))


class Controller:
    """A folder with hosts.yaml, playbook and payload, and the command line that reads them."""

    def __init__(self, folder: Path, hosts: Iterable[Host], **fields: Any) -> None:
        self.folder = folder
        self.hosts = {host.name: host for host in hosts}
        self.lab = next(iter(self.hosts.values())).lab
        self.product = ""  # a folder with another version of the product; "" for the one under test
        folder.mkdir(parents=True, exist_ok=True)
        self.write_hosts({name: host.inventory(**fields) for name, host in self.hosts.items()})

    def write_hosts(self, entries: dict[str, Any]) -> None:
        """Write hosts.yaml; all hosts are the group `all`."""
        (self.folder / "hosts.yaml").write_text(
            yaml.safe_dump({"hosts": entries, "groups": {"all": sorted(entries)}}, sort_keys=False)
        )

    def start(self, command: str, *words: str, env: dict[str, str] | None = None) -> Running:
        """Start `ddtree-deploy COMMAND WORDS... --hosts ... --json`."""
        argv = [sys.executable, "-m", "ddtree_deploy", command, *words]
        argv += ["--hosts", str(self.folder / "hosts.yaml"), "--json"]
        with self.lab.inside():
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.folder,
                start_new_session=True,
                env={**os.environ, **({"PYTHONPATH": self.product} if self.product else {}), **(env or {})},
            )
        return Running(process, argv)

    def run(self, command: str, *words: str, env: dict[str, str] | None = None) -> Result:
        """The same, to its end."""
        return self.start(command, *words, env=env).finish()
