"""Which backups lead back to an earlier release. Pure.

A path is as it was at a release when it is restored from the backup of the earliest later run that
changed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.planning.drift import owned

BASE = "base"  # what was before our first rollout


@dataclass(frozen=True)
class Way:
    """`sources`: path -> (run whose backup has it, ref). `undoes`: the run that found `back_to`."""

    sources: dict[str, tuple[str, str]]
    undoes: str
    back_to: str  # "" = before the first


def one_step(facts: Facts) -> Way:
    """To what the rollout of the live release found.

    `changed` in installed.json lists its paths (path -> ref): files of the release, and those that it removed
    or put back to upstream's.
    """
    installed = facts.installed or {}
    run = str(installed.get("release", ""))
    changed = installed.get("changed", {path: own["ref"] for path, own in owned(facts).items()})
    row = next((r for r in facts.releases if r.run == run), None)
    return Way({path: (run, ref) for path, ref in changed.items()}, run, row.previous if row else "")


def to_release(host: Host, facts: Facts, wanted: str) -> Way:
    """To a release in the line of the live one, or to `base`. Raises InputError."""
    goal = resolve(host, facts, wanted)
    sources: dict[str, tuple[str, str]] = {}
    for kept in facts.kept:  # the live one first: what an earlier backup has wins
        sources |= {path: (kept.run, ref) for path, ref in kept.paths.items()}
        if kept.previous == goal:
            return Way(sources, kept.run, goal)
    if any(r.run == goal for r in facts.releases) or not goal:
        raise _refused(
            host,
            facts,
            f"no kept backups lead back to {wanted}: it is not what the live release was made on, or too old",
        )
    raise _refused(host, facts, f"there is no release {wanted}")


def resolve(host: Host, facts: Facts, wanted: str) -> str:
    """The run that `wanted` means: a whole id, or the only one that begins so; "" for `base`.

    Raises InputError for an unknown, an ambiguous, or a bad one.
    """
    if wanted == BASE:
        return ""
    found = [r for r in facts.releases if r.action == "rollout" and r.run.startswith(wanted)]
    whole = [r for r in found if r.run == wanted] or found
    if len(whole) > 1:
        raise _refused(host, facts, f"{wanted} is the beginning of {len(whole)} releases")
    if not whole:
        raise _refused(host, facts, f"there is no release {wanted}")
    if whole[0].verdict != "good":
        raise _refused(host, facts, f"release {whole[0].run} is marked {whole[0].verdict}")
    return whole[0].run


def targets(facts: Facts) -> list[str]:
    """The releases that can be gone back to, newest first; `base` for before the first."""
    return [kept.previous or BASE for kept in facts.kept]


def _refused(host: Host, facts: Facts, reason: str) -> InputError:
    can = ", ".join(targets(facts)) or "none"
    return InputError(
        f"{reason}; can be gone back to: {can}",
        field="--to",
        stage="plan",
        host=host.name,
        next_command=f"ddtree-deploy releases {host.name}",
    )
