"""Which backups lead back to an earlier release. Pure.

A path is as it was at a release when it is restored from the backup of the earliest later run that
changed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_deploy.errors import InputError
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.planning.known import Known

BASE = "base"  # what was before our first rollout


@dataclass(frozen=True)
class Way:
    """`sources`: path -> (run whose backup has it, ref). `undoes`: the run that found `back_to`."""

    sources: dict[str, tuple[str, str]]
    undoes: str
    back_to: str  # "" = before the first


def one_step(known: Known) -> Way:
    """To what the rollout of the live release found. Raises InputError where its backup is gone.

    `changed` in installed.json lists its paths (path -> ref): files of the release, and those that it removed
    or put back to upstream's.
    """
    run, release = known.live, known.release(known.live)
    if run not in [kept.run for kept in known.facts.kept]:
        raise _refused(known, f"the backup of {run}, the live release, is gone")
    every = {path: own["ref"] for path, own in known.owned.items()}
    changed = (known.facts.installed or {}).get("changed", every)
    return Way({path: (run, ref) for path, ref in changed.items()}, run, release.previous if release else "")


def to_release(known: Known, wanted: str) -> Way:
    """To a release in the line of the live one, or to `base`. Raises InputError."""
    goal = resolve(known, wanted)
    sources: dict[str, tuple[str, str]] = {}
    # The live one first: what an earlier backup has wins.
    for kept in known.facts.kept if goal else known.facts.base:
        sources |= {path: (kept.run, ref) for path, ref in kept.paths.items()}
        if kept.previous == goal:
            return Way(sources, kept.run, goal)
    if known.release(goal) or not goal:
        raise _refused(
            known,
            f"no kept backups lead back to {wanted}: it is not what the live release was made on, or too old",
        )
    raise _refused(known, f"there is no release {wanted}")


def resolve(known: Known, wanted: str) -> str:
    """The run that `wanted` means: a whole id, or the only one that begins so; "" for `base`.

    Raises InputError for an unknown, an ambiguous, or a bad one.
    """
    if wanted == BASE:
        return ""
    found = [r for r in known.facts.releases if r.action == "rollout" and r.run.startswith(wanted)]
    whole = [r for r in found if r.run == wanted] or found
    if len(whole) > 1:
        raise _refused(known, f"{wanted} is the beginning of {len(whole)} releases")
    if not whole:
        raise _refused(known, f"there is no release {wanted}")
    if whole[0].verdict != "good":
        raise _refused(known, f"release {whole[0].run} is marked {whole[0].verdict}")
    return whole[0].run


def targets(facts: Facts) -> list[str]:
    """The releases that can be gone back to, newest first; `base` for before the first."""
    return [kept.previous for kept in facts.kept if kept.previous] + ([BASE] if facts.base else [])


def _refused(known: Known, reason: str) -> InputError:
    can = ", ".join(targets(known.facts)) or "none"
    return InputError(
        f"{reason}; can be gone back to: {can}",
        field="--to",
        stage="plan",
        host=known.name,
        next_command=f"ddtree-deploy releases {known.name}",
    )
