"""Host x Facts x Payload x Playbook -> Plan. Pure: no clock, no network, no files.

A plan names only paths that differ from what is wanted. Each carries the digest of the live file that it was
made for; the runner compares again under the lock.
"""

from __future__ import annotations

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import archive
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook, expect_action
from ddtree_deploy.planning import going_back
from ddtree_deploy.planning.assemble import (
    NothingToDo,
    PlanResult,
    RunOptions,
    assemble,
    check_service,
    fields_of,
    release_digest,
)
from ddtree_deploy.planning.drift import check
from ddtree_deploy.planning.known import Known
from ddtree_deploy.planning.plan_files import PlannedFile, check_bases, check_folders, gone, restores
from ddtree_deploy.planning.variants import choose


def make_rollout(known: Known, payload: Payload, playbook: Playbook, options: RunOptions) -> PlanResult:
    """Plan a rollout. Raises DriftError (no variant, foreign files) or InputError (contradictions)."""
    expect_action(playbook, "rollout")
    check_service(known, accept_drift=options.accept_drift)
    _refuse_held(known)
    variant = choose(known, payload)
    check_folders(known, variant)
    wanted = [PlannedFile.of(known, item) for item in variant.items]
    changed = [w for w in wanted if w.changed]
    stale = gone(known, {w.live.path for w in wanted})
    foreign = check(known, [w.live for w in changed] + [g.live for g in stale], options.accept_drift)
    check_bases(known, wanted, stale)
    release = release_digest((w.item.ref, w.item.sha256, w.mode) for w in wanted)
    warnings = []
    if known.facts.attempts.get(release) == "bad":
        warnings.append("this very release was rolled out here before and failed its gates")
    if foreign:
        warnings.append(f"foreign files that are replaced, and kept in the backup: {len(foreign)}")
    return assemble(
        known,
        playbook,
        options,
        archive.build({**payload.archive_entries(variant), **playbook.attachments}),
        payload=payload,
        files=[*(w.change(known) for w in wanted), *(g.change for g in stale)],
        warnings=warnings,
        payload_name=payload.name,
        payload_version=payload.version,
        variant=variant.name,
        release=release,
        serves=variant.serves,
        targets=sorted([*(w.target() for w in changed), *(g.target for g in stale)], key=lambda t: t.ref),
    )


def make_rollback(
    known: Known, playbook: Playbook, options: RunOptions, *, of_run: str = "", to: str = ""
) -> PlanResult | NothingToDo:
    """Plan the way back from the live release to the good one before it, or to an earlier release.

    of_run: the only rollout that may be undone, as the controller remembers it; "" = whichever is live.
    to: a release, or `base`. What is not a state but a step (no `to`) and cannot be done is `missed`.
    Raises DriftError if the host has moved since, InputError for a release that cannot be gone back to.
    """
    expect_action(playbook, "rollback")
    name, live = known.name, known.live
    goal = going_back.resolve(known, to) if to else ""
    if to and goal == live:
        return NothingToDo(name, f"{live or 'what was before the first rollout'} is live already")
    if known.facts.installed is None:
        if to:
            going_back.to_release(known, to)  # refuses
        return NothingToDo(name, f"nothing of ours is installed{_ended(known, of_run)}", missed=True)
    if of_run and of_run != live:
        said = f"the last rollout from here is not live{_ended(known, of_run)}; {live} is"
        return NothingToDo(name, said, missed=True, next_command=f"ddtree-deploy rollback {name}")
    check_service(known, accept_drift=options.accept_drift, back=True)
    way = going_back.to_release(known, to) if to else going_back.one_step(known)
    targets, files = restores(known, way.sources, options.accept_drift)
    undone = "" if to else _ended(known, "")
    return assemble(
        known,
        playbook,
        options,
        archive.build(playbook.attachments),
        files=files,
        warnings=[f"this goes behind the live release{undone}"] if undone else [],
        **fields_of(known.release(way.back_to)),
        targets=targets,
        back_to=way.back_to,
        undoes=way.undoes,
    )


def _ended(known: Known, run: str) -> str:
    """How the rollout `run` ended ("": the last one), where it was put back; in brackets."""
    found = [r for r in known.facts.releases if r.action == "rollout" and run in ("", r.run)]
    back = found and found[-1].verdict in ("bad", "rolled-back")
    ended = f"ended {found[-1].verdict} and was undone by itself" if back else "was rolled back"
    return f" (rollout {found[-1].run} {ended})" if found and found[-1].run != known.live else ""


def _refuse_held(known: Known) -> None:
    held = known.held
    if held is not None:
        raise InputError(
            f"release {held.run} of {held.who} is held since {held.time}: a person has to decide first",
            host=known.name,
            stage="plan",
            next_command=f"ddtree-deploy confirm {known.name}, or ddtree-deploy rollback {known.name}",
        )
