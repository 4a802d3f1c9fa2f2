"""What all plans share: the options of a run, the plan as sent, and the same for people. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any

from ddtree_deploy.inputs import archive
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.onhost.wire.facts import Release
from ddtree_deploy.onhost.wire.kinds import TABLE, stop_limit_s
from ddtree_deploy.onhost.wire.protocol import PROTOCOL, FactsRequest, Plan, to_dict
from ddtree_deploy.planning import digest
from ddtree_deploy.planning.changes import ChangeSet, FileChange, StepLine
from ddtree_deploy.planning.known import PACKAGE, Known
from ddtree_deploy.planning.plan_steps import step_specs


@dataclass(frozen=True)
class RunOptions:
    """What a run is called and by whom it was asked for."""

    run: str  # 20261129T174501-ab12cd
    who: str
    created: str  # ISO 8601, UTC
    accept_drift: bool = False
    secrets: dict[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, now: datetime, token: str, who: str, **more: Any) -> RunOptions:
        """Name the run after the time (aware) and six random hexadecimal digits."""
        utc = now.astimezone(timezone.utc)
        return cls(f"{utc:%Y%m%dT%H%M%S}-{token}", who, utc.isoformat(timespec="seconds"), **more)


@dataclass(frozen=True)
class PlanResult:
    """A plan, the archive that goes with it, and the same for people."""

    plan: Plan
    archive: bytes
    changes: ChangeSet


@dataclass(frozen=True)
class NothingToDo:
    """There is nothing to do. `reason` says why, for people.

    missed: what was asked for is not so, and cannot be done; else it is so already, which is a pass.
    """

    host: str
    reason: str
    missed: bool = False
    next_command: str = ""


def facts_request(
    host: Host, payload: Payload | None, *, contents: bool = False, secrets: dict[str, str] | None = None
) -> FactsRequest:
    """What to ask the host: the paths of all variants, and the folders that new ones lie in.

    secrets: those that its server asks for; given, it is asked whether the live release serves.
    """
    refs: set[str] = set()
    for variant in payload.variants if payload else ():
        for item in variant.items:
            refs.add(item.ref)
            refs.update(str(parent) for parent in PurePosixPath(item.ref).parents if str(parent) != ".")
    return FactsRequest(
        protocol=PROTOCOL,
        state_dir=host.state_dir,
        refs=sorted(refs),
        service=host.service,
        also_stop=list(host.also_stop),
        contents=contents,
        package=PACKAGE,
        serving=secrets is not None,
        secrets=secrets or {},
    )


def release_digest(files: Iterable[tuple[str, str, int]]) -> str:
    """Digest of an installed state from (ref, sha256, mode). By ref: equal on hosts with equal content."""
    text = "".join(f"{ref}\0{sha}\0{mode:o}\n" for ref, sha, mode in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def fields_of(release: Release | None) -> dict[str, Any]:
    """The fields of a plan that name the release which is live at its end; None: nothing of ours."""
    if release is None:
        return {"payload_name": "", "payload_version": "", "variant": "", "release": release_digest([])}
    return {
        "payload_name": release.payload,
        "payload_version": release.version,
        "variant": release.variant,
        "release": release.digest,
    }


def check_service(known: Known, *, accept_drift: bool = False, back: bool = False) -> None:
    """The service of hosts.yaml can be driven (no container, no wrapper, ...), runs as it is defined, and
    imports the code of the venv.

    back: a way back is never barred by other code; it is told of in the warnings.
    Raises InputError, DriftError.
    """
    service = known.facts.service
    if service is None:
        return
    if service.problem:
        raise known.host.error(service.problem, "service", stage="plan")
    if service.differs and not accept_drift:
        raise known.drift(
            service.not_in_effect(),
            "restart the service (or undo the change) and look at it, then the same command again; "
            "or the same with --accept-drift",
        )
    if service.other_code and not back:
        raise known.drift(
            service.other_code,
            f"correct `python:` of {known.name} in hosts.yaml, or how the service is started on the host",
        )


def assemble(
    known: Known,
    playbook: Playbook,
    options: RunOptions,
    blob: bytes,
    *,
    payload: Payload | None = None,
    files: Iterable[FileChange] = (),
    warnings: Sequence[str] = (),
    **own: Any,
) -> PlanResult:
    """The plan: what all actions share, and the fields of its `own`. `warnings` are beside those of the host.

    payload: of a rollout; it says which checks there are, and is part of the digest.
    """
    host, facts = known.host, known.facts
    steps = step_specs(host, playbook, payload)
    preflight = next((s for s in steps if s.kind == "preflight"), None)
    plan = Plan(
        protocol=PROTOCOL,
        run=options.run,
        action=playbook.action,
        host=host.name,
        who=options.who,
        created=options.created,
        python=facts.python,
        state_dir=host.state_dir,
        site=facts.site,
        package_dir=facts.packages[PACKAGE].folder if PACKAGE in facts.packages else "",
        payload_digest=archive.digest(blob),
        steps=steps,
        service=host.service,
        accept_drift=options.accept_drift,
        also_stop=list(host.also_stop),
        min_free_bytes=int(preflight.options["min_free_bytes"]) if preflight else 0,
        gpus=host.gpus,
        on_controller_loss=playbook.on_controller_loss,
        on_inconclusive=playbook.on_inconclusive,
        secrets=dict(options.secrets),
        **own,
    )
    changes = _changes(known, playbook, plan, files, [*_warnings(known, plan), *warnings])
    if payload is not None:
        changes = replace(changes, digest=digest.of(known, payload, playbook, plan))
    return PlanResult(plan, blob, changes)


def _warnings(known: Known, plan: Plan) -> list[str]:
    """What of the host a person should know before saying yes."""
    host, facts = known.host, known.facts
    found = list(facts.warnings)
    if facts.service is not None:
        found += [text for text in (facts.service.other_code, *facts.service.warnings) if text]
    limit = stop_limit_s(plan.steps, plan.service)
    if facts.service is not None and limit is not None:
        if short := facts.service.short_limit(limit):
            found.append(short)
        if others := ", ".join(facts.service.conflicting):
            found.append(f"a start of the service stops what conflicts with it: {others}")
    if facts.lock.held:
        found.append(f"locked by run {facts.lock.run} of {facts.lock.who} since {facts.lock.since}")
    if facts.orphan is not None:
        found.append(f"run {facts.orphan.run} ended without a verdict; it is recovered first")
    if host.gpus is not None and host.gpus != len(facts.gpus):
        found.append(f"{host.gpus} GPUs expected, {len(facts.gpus)} found: preflight will fail")
    return [*found, *(f"another process uses this venv: {p.pid} {p.command}" for p in facts.processes)]


def _changes(
    known: Known, playbook: Playbook, plan: Plan, files: Iterable[FileChange], warnings: list[str]
) -> ChangeSet:
    service = known.facts.service
    payload = f"{plan.payload_name} {plan.payload_version}, variant {plan.variant}"
    return ChangeSet(
        host=plan.host,
        action=plan.action,
        payload=payload if plan.payload_name else "",
        sglang=known.sglang,
        python=plan.python,
        live_release=known.live,
        back_to=_goal(known, plan) if plan.action == "rollback" else "",
        files=tuple(sorted(files, key=lambda f: f.ref)),
        service=f"{plan.service.kind} {plan.service.name}" if plan.service else "",
        command=tuple(service.command) if service else (),
        new_command=tuple(service.new_command) if service else (),
        steps=_step_lines(playbook, plan),
        warnings=tuple(warnings),
        launch_changed=_launch_changed(known),
        dependents=tuple(service.dependents) if service and stop_limit_s(plan.steps, plan.service) else (),
    )


def _goal(known: Known, plan: Plan) -> str:
    goal = known.release(plan.back_to)
    return f"{goal.run} ({goal.payload} {goal.version})" if goal else "before the first rollout"


def _step_lines(playbook: Playbook, plan: Plan) -> tuple[StepLine, ...]:
    specs = {spec.name: spec for spec in plan.steps}
    return tuple(
        StepLine(
            step.name,
            specs[step.name].timeout_s if step.name in specs else step.timeout_s or 0.0,
            specs[step.name].options if step.name in specs else {},
            "no service" if plan.service is None and TABLE[step.kind].service else "",
            on_controller=TABLE[step.kind].on_controller,
        )
        for step in playbook.steps
    )


def _launch_changed(known: Known) -> bool:
    """What the live release was started with differs from hosts.yaml; False where nothing of ours is live."""
    installed, service = known.facts.installed, known.host.service
    if service is None or installed is None:
        return False
    return bool(installed.get("launch") != to_dict(service.launch))
