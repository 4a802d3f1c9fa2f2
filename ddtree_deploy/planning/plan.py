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
        targets=sorted([*(w.target() for w in changed), *(g.target for g in stale)], key=lambda t: t.ref),
    )


def make_rollback(
    known: Known, playbook: Playbook, options: RunOptions, *, of_run: str = "", to: str = ""
) -> PlanResult | NothingToDo:
    """Plan the way back from the installed release to what its rollout found, or to an earlier release.

    of_run: the rollout to undo, as the controller remembers it; "" = whatever is installed. If that release
    is not live (it was rolled back, by itself or by hand) there is nothing to do. to: a release, or `base`.
    Raises DriftError if the host has moved since, InputError for a release that cannot be gone back to.
    """
    expect_action(playbook, "rollback")
    name, live, releases = known.name, known.live, known.facts.releases
    last = releases[-1] if releases else None
    goal = going_back.resolve(known, to) if to else ""
    if known.facts.installed is None:
        back = f"already back: run {last.run} ended {last.verdict}" if last else ""
        return NothingToDo(name, back or "nothing of ours is installed")
    if to and goal == live:
        return NothingToDo(name, f"{live} is live already")
    failed = last is not None and last.action == "rollout" and last.verdict != "good" and last.run != live
    if not to and ((of_run and of_run != live) or (failed and not of_run)):
        undone = of_run or (last.run if last else "")
        further = f"further back: ddtree-deploy releases {name}, then rollback {name} --to RELEASE"
        return NothingToDo(name, f"already back: {undone} is not live, {live} is; {further}")
    check_service(known, accept_drift=options.accept_drift, back=True)
    way = going_back.to_release(known, to) if to else going_back.one_step(known)
    targets, files = restores(known, way.sources, options.accept_drift)
    return assemble(
        known,
        playbook,
        options,
        archive.build(playbook.attachments),
        files=files,
        **fields_of(known.release(way.back_to)),
        targets=targets,
        back_to=way.back_to,
        undoes=way.undoes,
    )


def _refuse_held(known: Known) -> None:
    held = known.held
    if held is not None:
        raise InputError(
            f"release {held.run} of {held.who} is held since {held.time}: a person has to decide first",
            host=known.name,
            stage="plan",
            next_command=f"ddtree-deploy confirm {known.name}, or ddtree-deploy rollback {known.name}",
        )
