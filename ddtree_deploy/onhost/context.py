"""What every step gets: the plan, the run's folder, a journal, a deadline, interruption."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .state.journal import Journal
from .state.layout import site_key
from .state.lock import SiteLock
from .venv.files import Files
from .wire.protocol import Plan, StepSpec


class StepFailed(Exception):
    """A gate did not pass. `verdict` is fail or inconclusive; the message says what was seen and expected."""

    def __init__(self, reason: str, *, verdict: str = "fail", exit_code: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.verdict = verdict
        self.exit_code = exit_code  # 0: the verdict's own (1 or 7); 5 locked, 6 drift


class StepSkipped(Exception):
    """The step does not apply here; the reason is shown, it never counts as a pass."""


class Interrupt(Exception):
    """The controller asked for an orderly undo (or is gone and the plan says `undo`)."""


class UndoFailed(Exception):
    """The recorded state could not be reached. The message says what is different, and where."""


@dataclass
class Context:
    """Handed to `do`, `undo` and `check_undone` of every step."""

    plan: Plan
    run_dir: Path
    journal: Journal
    step: StepSpec
    deadline: float = 0.0  # time.monotonic() value
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # step name -> data of its result event
    stop_event: threading.Event = field(default_factory=threading.Event)  # set by SIGTERM / interrupt
    uninterruptible: bool = False  # true while undoing
    interrupted_by: str = ""  # why stop_event is set
    run_as: str | None = None  # see staging.run_as
    lock: SiteLock | None = None  # held from the lock step on
    recovered: bool = False  # the run's own runner died
    recorded: bool = False  # the decision was carried out to its end (see `commit.forward`)
    served: int = 0  # main process of a service that this run did not start, as its first gate met it
    answered: float = 0.0  # when the service last answered us, in seconds since 1970; 0: not in this process
    held: str = ""  # step and reason of the gate that could not decide, where the plan says `hold`

    @property
    def state_dir(self) -> Path:
        """The folder of this venv's state: lock, runs/, bases/, releases.jsonl."""
        return self.run_dir.parent.parent

    @property
    def stage_dir(self) -> Path:
        return self.run_dir / "stage"

    @property
    def backup_dir(self) -> Path:
        return self.run_dir / "backup"

    @property
    def logs_dir(self) -> Path:
        return self.run_dir / "logs"

    def files(self) -> Files:
        """What reads and changes the venv; it does not reach out of site-packages and the package."""
        roots = [r for r in (self.plan.site, self.plan.package_dir) if r]
        return Files(roots, site_key(self.plan.site))

    def option(self, name: str, default: Any) -> Any:
        """An option of the step as written in the playbook."""
        return self.step.options.get(name, default)

    def progress(self, text: str, **data: Any) -> None:
        """Show one line to whoever watches."""
        self.journal.write("progress", step=self.step.name, text=text, **data)

    def intent(self, **undo: Any) -> None:
        """Record, durably, how to undo the mutation that comes next. Call it *before* every mutation."""
        self.journal.write("intent", sync=True, step=self.step.name, undo=undo)

    def done(self, **data: Any) -> None:
        """Record, durably, that the mutation of the last intent is complete."""
        self.journal.write("done", sync=True, step=self.step.name, **data)

    def result(self, **data: Any) -> None:
        """Keep figures for later steps, the record and the report."""
        self.results[self.step.name] = data
        self.journal.write("result", step=self.step.name, data=data)

    def remaining(self) -> float:
        """Seconds until the step's deadline (never negative)."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        """Raise Interrupt when asked to stop, StepFailed when the step's time is over."""
        if self.stop_event.is_set() and not self.uninterruptible:
            raise Interrupt
        self.check_time()

    def check_time(self) -> None:
        """Raise StepFailed when the step's time is over."""
        if self.remaining() <= 0:
            raise StepFailed(f"step {self.step.name} took longer than its {self.step.timeout_s:.0f} s")

    def pause(self, seconds: float) -> None:
        """Sleep that an interrupt or the deadline ends early."""
        wait = min(seconds, self.remaining())
        if self.uninterruptible:
            time.sleep(wait)
        else:
            self.stop_event.wait(wait)
        self.check()
