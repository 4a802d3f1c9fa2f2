"""What was rolled out on a host: facts in, rows and words out. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ddtree_deploy.onhost.wire.facts import Release
from ddtree_deploy.planning import going_back
from ddtree_deploy.planning.known import Known
from ddtree_deploy.text import safe


@dataclass(frozen=True)
class Row(Release):
    """One rollout or rollback, as the host recorded it."""

    live: bool = False
    target: bool = False  # `rollback --to` can go there


def rows(known: Known) -> list[Row]:
    """Newest first."""
    back = going_back.targets(known.facts)
    return [
        Row(
            **asdict(r),
            live=r.run == known.live,
            target=r.action == "rollout" and r.verdict in ("good", "held") and r.run in back,
        )
        for r in reversed(known.facts.releases)
    ]


def lines_of(host: str, found: list[Row], back: list[str]) -> list[str]:
    """A table for people; `*` is live, `<` can be gone back to."""
    if not found:
        return [f"{host}: nothing was rolled out here yet"]
    lines = [f"{host}  (* live, < can be gone back to with `rollback {host} --to RELEASE`)"]
    for r in found:
        mark = "*" if r.live else "<" if r.target else " "
        what = f"{r.payload} {r.version}" if r.payload else "to upstream"
        lines.append(
            f"  {mark} {r.run}  {r.time}  {r.action:<8}  {r.verdict:<11}  {r.digest[:12]}  {what}, by {r.who}"
        )
    if going_back.BASE in back:
        lines.append(f"  < {going_back.BASE}  before the first rollout")
    return [safe(line) for line in lines]
