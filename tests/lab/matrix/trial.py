"""One cell on one host: the fault, a look at the host as it is, what a user would type, the verdict."""

from __future__ import annotations

import random
import shlex
import time
from dataclasses import dataclass, field

from tests.lab.controller import Result, Running
from tests.lab.hosts import LabError
from tests.lab.matrix.cells import Cell
from tests.lab.matrix.instant import Instant, Tail, await_instant
from tests.lab.matrix.looks import Look, classify, untidy
from tests.lab.matrix.strike import TIME_OUT_S, Fault
from tests.lab.matrix.target import Target

MOST_COMMANDS = 5
ORIGINS = {"rollout": "before", "rollback": "after"}  # the state of the host that an action starts from
# Exit code -> the host is as before this command, or what it was to become; "" says neither.
PROMISES = {
    0: "done",
    1: "before",
    2: "before",
    3: "",
    4: "",
    5: "",
    6: "before",
    7: "before",
    8: "",
    130: "before",
}
PROMISES |= {-9: ""}  # we killed it


@dataclass
class Trial:
    """How a cell went. `problems` is empty where the fault was survived."""

    cell: Cell
    problems: list[str] = field(default_factory=list)
    found: str = ""  # the host before any command: before | after | between
    ended: str = ""  # and after the last one
    commands: list[str] = field(default_factory=list)  # what was typed, with its exit code
    note: str = ""
    struck: bool = True  # False: the second of two faults found nothing (any more) to strike
    host: str = ""
    seconds: float = 0.0
    lab_failed: bool = False
    log: list[str] = field(default_factory=list)

    @property
    def survived(self) -> bool:
        return not self.problems

    def line(self) -> str:
        """For people."""
        path = " -> ".join(filter(None, [self.found, *self.commands, self.ended]))
        note = f" ({self.note})" if self.note else ""
        return f"{'ok  ' if self.survived else 'FAIL'} {self.cell}: {path}{note} {self.seconds:.1f} s"


def attempt(target: Target, cell: Cell, rng: random.Random) -> Trial:
    """Run the cell. Never raises for what the product does; what breaks the lab is a problem, too."""
    trial = Trial(cell, host=target.host.name)
    begun = time.monotonic()
    origin = target.state
    try:
        _attempt(target, cell, rng, trial, origin)
    except Exception as error:  # a lab that fails proves nothing: the cell counts as not survived
        trial.problems.append(f"{type(error).__name__}: {error}"[:3000])
        trial.lab_failed = True
    trial.seconds = time.monotonic() - begun
    target.cells += 1
    return trial


def _attempt(target: Target, cell: Cell, rng: random.Random, trial: Trial, origin: str) -> None:
    first = Fault(cell.fault, target.host, wait=not cell.second)
    second = Fault(cell.second, target.host) if cell.second else None
    running = target.start(cell.action, short_step=cell.step if cell.fault == "time-out" else "")
    tail = _strike_first(target, cell, rng, running, first)
    if second is not None and tail is not None:
        running = _strike_second(target, rng, running, tail, second, trial)
    if first.rebooted:
        target.host.wait_ready()
    ended = _end(running, trial)
    target.settle()
    if tail is not None and cell.fault == "time-out":
        trial.problems += _overrun(tail, cell.step)
    seen = target.look()
    trial.found = classify(seen, target.known.states)
    trial.problems += _claims(ended, trial.found, origin)
    if first.rebooted or (second and second.rebooted):
        trial.problems += _half(seen, target)
    for fault in filter(None, (first, second)):
        trial.note = "; ".join(filter(None, [trial.note, fault.note]))
        fault.mend()
    _mend(target, tail, rng, ended, trial)
    target.settle()
    seen = target.look()
    trial.ended = classify(seen, target.known.states)
    trial.problems += untidy(seen)
    if trial.ended == "between":
        trial.problems += target.known.states[origin].differences(seen)
    else:
        target.state = trial.ended


def _strike_first(
    target: Target, cell: Cell, rng: random.Random, running: Running, fault: Fault
) -> Tail | None:
    if cell.step == "local":
        running.step("local", "verdict" if cell.moment == "after" else "start")
        time.sleep(rng.uniform(0, 0.1) if cell.moment == "during" else 0)
        fault.strike(running, None)
        return None
    shape = target.known.shapes[cell.action, cell.step]
    at = Instant(cell.step, cell.moment)
    if cell.moment == "during":
        at = (
            Instant(cell.step, "during", nth=rng.randrange(shape.events))
            if shape.events
            else Instant(cell.step, "during", delay=rng.uniform(0.0005, max(0.001, shape.seconds)))
        )
    run = str(running.until(lambda e: e["e"] == "plan", "the plan")["run"])
    tail = Tail(target.host, run)
    if not await_instant(at, target.host, tail, lambda: running.process.poll() is not None):
        raise LabError(f"{at} was never reached: {running.finish()}")
    fault.strike(running, tail)
    return tail


def _strike_second(  # noqa: PLR0917
    target: Target, rng: random.Random, running: Running, tail: Tail, fault: Fault, trial: Trial
) -> Running:
    """During the undo that the first fault brought about, or during the recovery of what it killed."""
    at = Instant("", "undo", nth=rng.randrange(6))
    if await_instant(at, target.host, tail, lambda: running.process.poll() is not None):
        fault.strike(running, tail)
        return running
    if any(e["e"] == "end" for e in tail.events):
        trial.struck, trial.note = False, "the first fault was over before the second"
        return running
    done = _end(running, trial)
    target.host.wait_ready()
    command = _following(done, target, rng)
    running = target.start("recover" if command == "status" else command)
    if await_instant(at, target.host, tail, lambda: running.process.poll() is not None):
        fault.strike(running, tail)
    else:
        trial.struck, trial.note = False, "nothing was undone for the second fault to strike"
    return running


def _end(running: Running, trial: Trial) -> Result:
    done = running.finish()
    said = [e for e in done.events if e["e"] == "outcome"]
    why = f" [{said[-1]['reason'][:200]}]" if done.code == 3 and said else ""
    trial.commands.append(f"{done.argv[1]} {done.code}{why}")
    trial.log.append(str(done))
    if "Traceback" in done.stderr:
        trial.problems.append(f"a traceback: {done.stderr[-500:]}")
    return done


def _half(seen: Look, target: Target) -> list[str]:
    """What is wrong with the service of a host that has booted by itself, with no command typed."""
    if not seen.generates:
        return [f"as booted: the service does not generate ({seen.inside['service']['active']})"]
    for reference in target.known.states.values():
        if seen.venv == reference.venv and seen.algorithm == reference.algorithm:
            return []
    return [f"as booted: half a change is served ({seen.algorithm})"]


def _overrun(tail: Tail, step: str) -> list[str]:
    """A step that passed long after its time was over. (`unlock` may: what it has decided stands.)"""
    tail.more()
    late = [
        float(e["seconds"])
        for e in tail.events
        if e["e"] == "verdict" and e.get("step") == step and e["verdict"] == "pass"
    ]
    if step == "unlock" or not late or late[0] <= TIME_OUT_S + 0.2:
        return []
    return [f"{step} passed after {late[0]:.1f} s, its time-out is {TIME_OUT_S} s"]


def _told(tail: Tail | None, done: Result) -> list[str]:
    """`attach` tells the verdict of a run that has begun, whoever started it and whenever it ended."""
    if tail is None or done.argv[1] != "attach":
        return []
    tail.more()
    if not any(e["e"] == "locked" for e in tail.events):
        return []
    ends = [int(e["exit"]) for e in tail.events if e["e"] == "end"]
    if done.code == 2 or (ends and done.code not in (ends[-1], 3)):
        return [f"attach ended with {done.code}, the run with {ends}"]
    return []


def _mend(target: Target, tail: Tail | None, rng: random.Random, ended: Result, trial: Trial) -> None:
    """Type what the tool says comes next, until it says `status` and that finds nothing to do."""
    done = ended
    while len(trial.commands) < MOST_COMMANDS:
        command = _following(done, target, rng)
        done = _end(target.start(command), trial)
        trial.problems += _told(tail, done)
        if command != "status":
            continue
        (status,) = [e for e in done.events if e["e"] in ("status", "error")]
        if status["e"] == "status" and not status["orphan"] and not status["lock"]["held"]:
            return
        done.events.append({"e": "outcome", "next_command": "ddtree-deploy recover"})
    trial.problems.append(f"{MOST_COMMANDS} commands later something is still left to do")


def _following(done: Result, target: Target, rng: random.Random) -> str:
    """The command that the last one named; after a killed controller, one of those that people type."""
    outcomes = [e for e in done.events if e["e"] == "outcome"]
    if not outcomes:
        return rng.choice(("attach", "status", done.argv[1]))
    words = shlex.split(outcomes[-1]["next_command"] or "")
    if "ddtree-deploy" not in words:
        return "status"
    return words[words.index("ddtree-deploy") + 1]


def _claims(done: Result, found: str, origin: str) -> list[str]:
    """An exit code is a promise about the host; this is what it breaks."""
    if done.code not in PROMISES:
        return [f"{done.argv[1]} ended with {done.code}, which is no exit code of ours: {done.stderr[-300:]}"]
    promise = PROMISES[done.code]
    if done.argv[1] not in ORIGINS or not promise:
        return []
    other = next(state for state in ORIGINS.values() if state != origin)
    expected = origin if promise == "before" else other
    if found == expected:
        return []
    return [f"{done.argv[1]} ended with {done.code}: the host should be {expected}, it is {found}"]
