"""What was rolled out on a host: facts in, rows and words out. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ddtree_deploy.onhost.wire.facts import Release
from ddtree_deploy.planning import going_back
from ddtree_deploy.planning.known import Known
from ddtree_deploy.running import next_command
from ddtree_deploy.text import safe


@dataclass(frozen=True)
class Row(Release):
    """One rollout or rollback, as the host recorded it."""

    live: bool = False
    target: bool = False  # `rollback --to` can go there
    command: str = ""  # what leads there; empty where it is live, or was never good


def rows(known: Known) -> list[Row]:
    """Newest first."""
    return [_row(known, release) for release in reversed(known.facts.releases)]


def _row(known: Known, release: Release) -> Row:
    live = release.run == known.live
    good = release.action == "rollout" and release.verdict in ("good", "held")
    target = good and release.run in going_back.targets(known.facts)
    command = command_to(known.name, release.run) if target else ""
    if good and not target and not live:
        command = f"ddtree-deploy rollout {known.name}, with {release.payload} {release.version}"
    return Row(**asdict(release), live=live, target=target, command=next_command.typed(command))


def command_to(host: str, release: str) -> str:
    """What leads back to a release, or to `base`."""
    return next_command.typed(f"ddtree-deploy rollback {host} --to {release}")


def lines_of(host: str, found: list[Row], back: list[str]) -> list[str]:
    """A table for people; `*` is live, `<` can be gone back to."""
    if not found:
        return [f"{host}: nothing was rolled out here yet"]
    lines = [f"{host}  (* live, < backups lead back to it)"]
    for r in found:
        mark = "*" if r.live else "<" if r.target else " "
        what = f"{r.payload} {r.version}" if r.payload else "to upstream"
        lines.append(
            f"  {mark} {r.run}  {r.time}  {r.action:<8}  {r.verdict:<11}  {r.digest[:12]}  {what}, by {r.who}"
        )
        lines += [f"      to get there: {r.command}"] if r.command else []
    if going_back.BASE in back:
        lines += [f"  < {going_back.BASE}  before the first rollout"]
        lines += [f"      to get there: {command_to(host, going_back.BASE)}"]
    return [safe(line) for line in lines]
