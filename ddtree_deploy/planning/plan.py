"""Host x Facts x Payload x Playbook -> Plan. Pure: no clock, no network, no files.

A plan names only paths that differ from what is wanted. Each carries the digest of the live file that it was
made for; the runner compares again under the lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import archive
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Payload, Variant
from ddtree_deploy.inputs.playbook import Playbook, expect_action
from ddtree_deploy.onhost.wire.facts import Facts, Release
from ddtree_deploy.onhost.wire.kinds import TABLE
from ddtree_deploy.onhost.wire.protocol import PROTOCOL, FactsRequest, Plan, to_dict
from ddtree_deploy.planning import going_back
from ddtree_deploy.planning.changes import ChangeSet, FileChange, StepLine
from ddtree_deploy.planning.drift import check
from ddtree_deploy.planning.plan_files import Wanted, check_bases, check_folders, gone, restores
from ddtree_deploy.planning.plan_steps import step_specs
from ddtree_deploy.planning.variants import PACKAGE, choose, sglang_version

GUESS_LIMIT = 256 << 10  # bytes that may travel for nothing


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
    """There is nothing to roll back; not an error (exit 0). `reason` says why, for people."""

    host: str
    reason: str


def facts_request(host: Host, payload: Payload | None, *, contents: bool = False) -> FactsRequest:
    """What to ask the host: the paths of all variants, and the folders that new ones lie in."""
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
    )


def release_digest(files: Iterable[tuple[str, str, int]]) -> str:
    """Digest of an installed state from (ref, sha256, mode). By ref: equal on hosts with equal content."""
    text = "".join(f"{ref}\0{sha}\0{mode:o}\n" for ref, sha, mode in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def make_rollout(
    host: Host, facts: Facts, payload: Payload, playbook: Playbook, options: RunOptions
) -> PlanResult:
    """Plan a rollout. Raises DriftError (no variant, foreign files) or InputError (contradictions)."""
    expect_action(playbook, "rollout")
    check_service(host, facts)
    _refuse_held(host, facts)
    variant = choose(host.name, facts, payload)
    check_folders(host, facts, variant)
    wanted = [Wanted.of(item, facts) for item in variant.items]
    stale = gone(facts, {w.live.path for w in wanted})
    foreign = check(
        host.name,
        [w.live for w in wanted if w.differs or w.live.state == "foreign"] + [g.live for g in stale],
        options.accept_drift,
        orphan=facts.orphan.run if facts.orphan else "",
    )
    check_bases(host, facts, wanted, stale)
    targets = [w.target() for w in wanted if w.differs or w.live.state == "foreign"]
    targets += [g.target for g in stale]
    blob = _archive(payload, variant, playbook)
    release = release_digest((w.item.ref, w.item.sha256, w.mode) for w in wanted)
    plan = common_plan(
        host,
        facts,
        playbook,
        options,
        payload=payload,
        payload_name=payload.name,
        payload_version=payload.version,
        variant=variant.name,
        payload_digest=archive.digest(blob),
        release=release,
        targets=sorted(targets, key=lambda t: t.ref),
    )
    files = [w.change(facts) for w in wanted] + [g.change for g in stale]
    warnings = warnings_of(host, facts)
    if facts.attempts.get(release) == "bad":
        warnings.append("this very release was rolled out here before and failed its gates")
    if foreign:
        warnings.append(f"foreign files that are replaced, and kept in the backup: {len(foreign)}")
    changes = change_set(host, facts, playbook, plan, files, warnings)
    return PlanResult(plan, blob, changes)


def _archive(payload: Payload, variant: Variant, playbook: Playbook) -> bytes:
    return archive.build({**payload.archive_entries(variant), **playbook.attachments})


def likely_archive(payload: Payload, playbook: Playbook, before: str) -> bytes:
    """The archive that a rollout will need, unless the host has changed: of the variant that was used there
    `before`, else of the first. Empty where it is so large that it should not be sent on a guess.
    """
    variant = next((v for v in payload.variants if v.name == before), payload.variants[0])
    if sum(map(len, payload.archive_entries(variant).values())) > 10 * GUESS_LIMIT:
        return b""
    made = _archive(payload, variant, playbook)
    return made if len(made) <= GUESS_LIMIT else b""


def make_rollback(
    host: Host, facts: Facts, playbook: Playbook, options: RunOptions, *, of_run: str = "", to: str = ""
) -> PlanResult | NothingToDo:
    """Plan the way back from the installed release to what its rollout found, or to an earlier release.

    of_run: the rollout to undo, as the controller remembers it; "" = whatever is installed. If that release
    is not live (it was rolled back, by itself or by hand) there is nothing to do. to: a release, or `base`.
    Raises DriftError if the host has moved since, InputError for a release that cannot be gone back to.
    """
    expect_action(playbook, "rollback")
    installed = facts.installed
    last = facts.releases[-1] if facts.releases else None
    goal_run = going_back.resolve(host, facts, to) if to else ""
    if to and installed is not None and goal_run == str(installed["release"]):
        return NothingToDo(host.name, f"{installed['release']} is live already")
    if installed is None:
        reason = (
            f"already back: run {last.run} ended {last.verdict}" if last else "nothing of ours is installed"
        )
        return NothingToDo(host.name, reason)
    live = str(installed["release"])
    failed = last is not None and last.action == "rollout" and last.verdict != "good" and last.run != live
    if not to and ((of_run and of_run != live) or (failed and not of_run)):
        undone = of_run or (last.run if last else "")
        further = f"further back: ddtree-deploy releases {host.name}, then rollback {host.name} --to RELEASE"
        return NothingToDo(host.name, f"already back: {undone} is not live, {live} is; {further}")
    check_service(host, facts)
    way = going_back.to_release(host, facts, to) if to else going_back.one_step(facts)
    targets, files = restores(host, facts, way.sources, options.accept_drift)
    goal = next((r for r in facts.releases if r.run == way.back_to), None)
    blob = archive.build(playbook.attachments)
    plan = common_plan(
        host,
        facts,
        playbook,
        options,
        payload=None,
        **fields_of(goal),
        payload_digest=archive.digest(blob),
        targets=targets,
        back_to=way.back_to,
        undoes=way.undoes,
    )
    changes = change_set(host, facts, playbook, plan, files, warnings_of(host, facts), goal=goal)
    return PlanResult(plan, blob, changes)


def held_release(facts: Facts) -> Release | None:
    """The live release, if it waits for a person."""
    live = (facts.installed or {}).get("release")
    return next((r for r in facts.releases if r.run == live and r.verdict == "held"), None)


def _refuse_held(host: Host, facts: Facts) -> None:
    held = held_release(facts)
    if held is not None:
        raise InputError(
            f"release {held.run} of {held.who} is held since {held.time}: a person has to decide first",
            host=host.name,
            stage="plan",
            next_command=f"ddtree-deploy confirm {host.name}, or ddtree-deploy rollback {host.name}",
        )


# ---- both ------------------------------------------------------------------------------------------------


def fields_of(release: Release | None) -> dict[str, str]:
    """The fields of a plan that name the release which is live at its end; None: nothing of ours."""
    if release is None:
        return {"payload_name": "", "payload_version": "", "variant": "", "release": release_digest([])}
    return {
        "payload_name": release.payload,
        "payload_version": release.version,
        "variant": release.variant,
        "release": release.digest,
    }


def common_plan(host: Host, facts: Facts, playbook: Playbook, options: RunOptions, **own: Any) -> Plan:
    """The plan's fields that all actions share, and `own`; `payload` only says which checks there are."""
    payload = own.pop("payload")
    steps = step_specs(host, playbook, payload)
    preflight = next((s for s in steps if s.kind == "preflight"), None)
    return Plan(
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


def check_service(host: Host, facts: Facts) -> None:
    """The service of hosts.yaml can be driven (no container, no wrapper, ...)."""
    if facts.service is not None and facts.service.problem:
        raise InputError(
            facts.service.problem,
            file=host.file,
            line=host.line,
            field=f"hosts.{host.name}.service",
            stage="plan",
        )


def warnings_of(host: Host, facts: Facts) -> list[str]:
    """What of the host a person should know before saying yes."""
    found = list(facts.warnings)
    if facts.lock.held:
        found.append(f"locked by run {facts.lock.run} of {facts.lock.who} since {facts.lock.since}")
    if facts.orphan is not None:
        found.append(f"run {facts.orphan.run} ended without a verdict; it is recovered first")
    if host.gpus is not None and host.gpus != len(facts.gpus):
        found.append(f"{host.gpus} GPUs expected, {len(facts.gpus)} found: preflight will fail")
    found += [f"another process uses this venv: {p.pid} {p.command}" for p in facts.processes]
    return found


def change_set(  # noqa: PLR0917
    host: Host,
    facts: Facts,
    playbook: Playbook,
    plan: Plan,
    files: list[FileChange],
    warnings: list[str],
    *,
    goal: Release | None = None,
) -> ChangeSet:
    """The plan for people. goal: the release that a rollback goes back to."""
    service = facts.service
    specs = {spec.name: spec for spec in plan.steps}
    steps = [
        StepLine(
            step.name,
            specs[step.name].timeout_s if step.name in specs else step.timeout_s or 0.0,
            specs[step.name].options if step.name in specs else {},
            "no service" if host.service is None and TABLE[step.kind].service else "",
            on_controller=TABLE[step.kind].on_controller,
        )
        for step in playbook.steps
    ]
    return ChangeSet(
        host=host.name,
        action=plan.action,
        payload=f"{plan.payload_name} {plan.payload_version}, variant {plan.variant}"
        if plan.payload_name
        else "",
        sglang=sglang_version(host.name, facts),
        python=facts.python,
        live_release=str((facts.installed or {}).get("release", "")),
        back_to=(f"{goal.run} ({goal.payload} {goal.version})" if goal else "before the first rollout")
        if plan.action == "rollback"
        else "",
        files=tuple(sorted(files, key=lambda f: f.ref)),
        service=f"{host.service.kind} {host.service.name}" if host.service else "",
        command=tuple(service.command) if service else (),
        new_command=tuple(service.new_command) if service else (),
        steps=tuple(steps),
        warnings=tuple(warnings),
        launch_changed=_launch_changed(host, facts),
    )


def _launch_changed(host: Host, facts: Facts) -> bool:
    """What the live release was started with differs from hosts.yaml; False where nothing of ours is live."""
    if host.service is None or facts.installed is None:
        return False
    return bool(facts.installed.get("launch") != to_dict(host.service.launch))
