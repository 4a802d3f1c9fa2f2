"""One host: facts, plan, launch, follow, settle the verdict. The same road for a rollout and a rollback."""

from __future__ import annotations

import getpass
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from ddtree_deploy import ssh
from ddtree_deploy.errors import NOTHING_DONE, GateFailed, InputError, Interrupted
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.planning.assemble import NothingToDo, PlanResult, RunOptions, facts_request
from ddtree_deploy.planning.changes import ChangeSet
from ddtree_deploy.planning.known import Known
from ddtree_deploy.running import expected, local_step, signing, unlocking
from ddtree_deploy.running.complaint import complain
from ddtree_deploy.running.follow import Follower, Patience
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.outcome import MEANING, Outcome
from ddtree_deploy.running.record import Record, RunRecord
from ddtree_deploy.running.recovery import recover_orphan
from ddtree_deploy.running.remote import Answer, ask, cargo, run_dir_of
from ddtree_deploy.running.sight import Sight
from ddtree_deploy.running.view import View


@dataclass
class Job:
    """What is to be done on each host of a fleet. `confirm` is asked with the changes; False ends the run."""

    playbook: Playbook
    make: Callable[[Known, RunOptions], PlanResult | NothingToDo]  # the planner of the playbook's action
    view: View
    record: Record
    interrupts: Interrupts
    confirm: Callable[[ChangeSet], bool]
    payload: Payload | None = None  # of a rollout
    accept_drift: bool = False
    expect: tuple[str, ...] = ()  # digests of plans: no other goes out
    patience: Patience = field(default_factory=Patience)


class Emitter:
    """Hands events to the view, and those of the host's journal to the record."""

    def __init__(self, view: View, host: str) -> None:
        self.view = view
        self.host = host
        self.run = ""
        self.record: RunRecord | None = None
        self.launched = False  # whether there is a run on the host to speak of
        self.results: dict[str, dict[str, Any]] = {}
        self.incomplete = ""  # why not all of the run is in the record

    def __call__(self, event: dict[str, Any]) -> None:
        if event["e"] == "result":
            self.results[str(event.get("step", ""))] = event.get("data", {})
        if self.record is not None and "n" in event:
            self.keep(lambda record: record.event(event))
        self.view.event(self.host, self.run, event)

    def resume(self, record: Record) -> None:
        """Go on with the record of the run, where its end is missing. A failure costs the record only."""
        try:
            self.record = record.resume(self.run)
        except OSError as error:
            self.incomplete = error.strerror or str(error)

    def keep(self, write: Callable[[RunRecord], None]) -> None:
        """Write to the record. A full disk here must not end our sight of a run on the host."""
        if self.record is None:
            return
        try:
            write(self.record)
        except Exception as error:
            self.record.abandon()  # also without its summary: `attach` can complete it
            self.record = None
            self.incomplete = getattr(error, "strerror", "") or str(error) or type(error).__name__


class Session:
    """One host's connection, with everything it carried counted over reconnects."""

    def __init__(self, host: Host, emit: Emitter) -> None:
        self.host = host
        self.emit = emit
        self.traffic = ssh.Traffic()
        self._open: list[ssh.Link] = []

    def dial(self) -> ssh.Link:
        """A new connection to the host."""
        link = ssh.connect(self.host, lambda text: self.emit({"e": "note", "text": text}))
        link.traffic = self.traffic
        self._open.append(link)
        return link

    def close(self) -> None:
        for link in self._open:
            link.close()


def run_host(host: Host, job: Job, launching: Callable[[str, str], None]) -> Outcome:
    """Do the job on one host. Never raises: the outcome says it.

    launching: told host and run just before a run begins on the host.
    """
    begun = time.monotonic()
    emit = Emitter(job.view, host.name)
    session, sight = Session(host, emit), Sight()

    def work() -> Outcome:
        job.interrupts.begin()
        return _run(host, job, emit, session, sight, launching)

    outcome = sight.settle(host.name, job.playbook.action, job.interrupts, work)
    return completed(outcome, emit, session, begun)


def completed(outcome: Outcome, emit: Emitter, session: Session, begun: float) -> Outcome:
    """The outcome with what was seen and carried since `begun`; it is kept, and shown."""
    session.close()
    traffic = session.traffic
    outcome.seconds, outcome.results = since(begun), emit.results
    outcome.execs, outcome.sent, outcome.received = traffic.execs, traffic.sent, traffic.received
    if emit.launched:
        outcome.run = emit.run
        emit.keep(lambda record: record.summary(outcome.to_dict()))
    emit.view.outcome(outcome)
    if emit.incomplete:
        complain(
            f"{emit.host}: the record of run {emit.run} here is incomplete: {emit.incomplete}; the whole is "
            f"on the host; next: ddtree-deploy attach {emit.host}"
        )
    return outcome


def _run(  # noqa: PLR0917
    host: Host,
    job: Job,
    emit: Emitter,
    session: Session,
    sight: Sight,
    launching: Callable[[str, str], None],
) -> Outcome:
    key = host.secrets()  # bad input is found before the host is asked
    link = _connect(host, emit, session)
    answer = _ask(host, job, link, emit)
    if answer.facts.orphan is not None:  # put right before anything is planned
        expected.refuse_orphan(host, job.expect, answer.facts.orphan.run)
        emit.run = answer.facts.orphan.run
        answer.close()
        recovered = recover_orphan(host, link, answer.facts, emit.run, emit, sight)
        if recovered.exit_code:
            return recovered
        answer = ask(link, host, facts_request(host, job.payload))
    known = Known(host, answer.facts)
    made = job.make(known, _options(job, key))
    expected.require(host, job.expect, made.changes.digest if isinstance(made, PlanResult) else "")
    if not isinstance(made, NothingToDo) and job.payload and made.changes.empty and _serving(known):
        made = NothingToDo(host.name, f"this release is live already ({known.live})")
    if isinstance(made, NothingToDo):
        action, following = job.playbook.action, made.next_command
        return Outcome.nothing(host.name, action, made.reason, missed=made.missed, following=following)
    made = _agree(known, job, made, emit)
    run_dir = run_dir_of(known.facts, made.plan.run)
    follower = Follower(
        host=host,
        run_dir=run_dir,
        python=known.facts.python,
        connect=session.dial,
        emit=emit,
        interrupts=job.interrupts,
        patience=job.patience,
        sight=sight,
    )
    emit.record = _record(job.record, made, known.facts, launching)
    emit.launched = True
    end = follower.launch(link, answer.stream, cargo(made.plan, run_dir, made.archive))
    return of_end(host.name, job.playbook.action, end)


def _connect(host: Host, emit: Emitter, session: Session) -> ssh.Link:
    begun = time.monotonic()
    link = session.dial()
    emit({"e": "connected", "seconds": since(begun), "text": f"{host.address} port {host.port}"})
    return link


def _ask(host: Host, job: Job, link: ssh.Link, emit: Emitter) -> Answer:
    """What the host is. Raises LockedError where another run holds it."""
    begun = time.monotonic()
    answer = ask(link, host, facts_request(host, job.payload))
    emit({"e": "facts", "seconds": since(begun), **facts_summary(answer.facts)})
    refuse_if_locked(host, answer.facts)
    return answer


def _options(job: Job, key: dict[str, str]) -> RunOptions:
    return RunOptions.at(
        datetime.now(timezone.utc),
        secrets.token_hex(3),
        who(),
        accept_drift=job.accept_drift,
        secrets=key,
    )


def who() -> str:
    """Who types here, and where."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _agree(known: Known, job: Job, made: PlanResult, emit: Emitter) -> PlanResult:
    """The plan, shown, confirmed, checked here, and signed."""
    host, payload = known.host, job.payload
    emit.run = made.plan.run
    emit(plan_event(made, [step.name for step in job.playbook.steps]))
    if not job.confirm(made.changes):
        raise Interrupted("not confirmed", stage="plan", host=host.name, state=NOTHING_DONE)
    if payload is not None and job.playbook.step("local") is not None:
        _local(host, payload, made, known.facts, emit)
    if payload is None or host.sign_with is None:
        return made
    signed = signing.sign(host, host.sign_with, made.plan.payload_digest)
    return replace(made, plan=replace(made.plan, signature=signed))


def _local(host: Host, payload: Payload, made: PlanResult, facts: Facts, emit: Emitter) -> None:
    begun = time.monotonic()
    emit({"e": "start", "step": "local", "kind": "local"})
    variant = next(v for v in payload.variants if v.name == made.plan.variant)
    verdict, reason = local_step.check(payload, variant, facts.python_version)
    emit({"e": "verdict", "step": "local", "verdict": verdict, "reason": reason, "seconds": since(begun)})
    if verdict == "fail":
        raise GateFailed(
            reason,
            stage="local",
            host=host.name,
            state=NOTHING_DONE,
            next_command=f"correct it, then: ddtree-deploy rollout {host.name}",
        )


def _record(
    record: Record, made: PlanResult, facts: Facts, launching: Callable[[str, str], None]
) -> RunRecord:
    """Begin the run's record; here, before anything has begun on the host, a full disk is an error."""
    try:
        begun = record.run(made.plan.run)
        begun.plan(made.plan)
        begun.facts(facts)
        launching(made.plan.host, made.plan.run)  # now: this process may not live to see the end
    except OSError as error:
        raise InputError(
            f"the record of the run cannot be written: {error.strerror or error}",
            file=record.folder,
            stage="plan",
            host=made.plan.host,
        ) from error
    return begun


def _serving(known: Known) -> bool:
    """Whether nothing needs to be put right: no dead run, and the service (if any) is up."""
    service = known.facts.service
    up = service is not None and service.state == "active" and service.listening
    return known.facts.orphan is None and (known.host.service is None or up)


def refuse_if_locked(host: Host, facts: Facts) -> None:
    """Raise LockedError naming the owner. The runner checks again; this only answers sooner."""
    if facts.lock.held:
        raise unlocking.refuse(host, "lock", facts.lock)


def of_end(host: str, action: str, end: dict[str, Any]) -> Outcome:
    """The outcome that the host's `end` event states. Raises ValueError for a code that is none of ours."""
    if end["exit"] not in MEANING:
        raise ValueError(f"the run ended with {end['exit']!r}, which is no exit code that is known here")
    return Outcome(
        host=host,
        action=action,
        exit_code=int(end["exit"]),
        run=str(end.get("run", "")),
        verdict=str(end["verdict"]),
        state=str(end["state"]),
        step=str(end.get("step", "")),
        reason=str(end.get("reason", "")),
        next_command=str(end.get("next", "")) or f"ddtree-deploy status {host}",
        down_s=end.get("down_s"),
    )


def facts_summary(facts: Facts) -> dict[str, Any]:
    """The few facts that are shown as they come in."""
    sglang = facts.packages.get("sglang")
    python = ".".join(map(str, facts.python_version))
    version = sglang.version if sglang else "none"
    live = str((facts.installed or {}).get("release", ""))
    return {
        "sglang": version,
        "python": python,
        "release": live,
        "gpus": len(facts.gpus),
        "text": f"{facts.hostname}: SGLang {version}, Python {python}, {len(facts.gpus)} GPUs, "
        f"release {live or 'none of ours'}",
    }


def plan_event(made: PlanResult, steps: list[str]) -> dict[str, Any]:
    """The plan in short: counts of files, steps, launch commands."""
    return {
        "e": "plan",
        "action": made.plan.action,
        "variant": made.plan.variant,
        "release": made.plan.release,
        "files": dict(sorted(Counter(f.change for f in made.changes.files).items())),
        "steps": steps,
        "command": list(made.changes.command),
        "new_command": list(made.changes.new_command),
        "dependents": list(made.changes.dependents),
        "warnings": list(made.changes.warnings),
        "digest": made.changes.digest,
    }


def since(begun: float) -> float:
    """Seconds since a monotonic time, to the millisecond."""
    return round(time.monotonic() - begun, 3)
