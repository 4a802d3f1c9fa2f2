"""The line of the live release: what it replaced, and so on; how far backups lead back; which are kept."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import NamedTuple

from . import layout, releases
from .held import is_held

KEEP_BACKUPS = 5
KEEP_RUNS = 20


class Link(NamedTuple):
    """A release in the line."""

    run: str
    previous: str  # the release that it found; "" = none of ours
    paths: dict[str, str]  # path -> ref, of what it changed
    new: frozenset[str]  # those of `paths` where nothing was before
    kept: bool  # its backup is there


def of_live(site_dir: Path) -> list[Link]:
    """The live release, what it replaced, and so on. Ends where nothing is known of one."""
    known = {str(line.get("run", "")): line for line in releases.lines(site_dir)}
    found: list[Link] = []
    run = str((releases.installed(site_dir) or {}).get("release", ""))
    while run and run not in [link.run for link in found]:
        run_dir = site_dir / "runs" / run
        noted = known.get(run, {})
        if "changed" in noted:
            previous, paths, new = str(noted["previous"]), noted["changed"], frozenset(noted["new"])
        else:  # of a version that did not note it
            plan = layout.read_json(run_dir / layout.PLAN)
            if not isinstance(plan, dict):
                break
            before = layout.read_json(run_dir / layout.PREVIOUS)
            previous = str((before or {}).get("release", ""))
            paths = {t["path"]: t["ref"] for t in plan["targets"]}
            new = frozenset(t["path"] for t in plan["targets"] if not t["before"])
        found.append(Link(run, previous, paths, new, (run_dir / "backup" / layout.MANIFEST).exists()))
        run = previous
    return found


def leading_back(site_dir: Path) -> tuple[list[Link], list[Link]]:
    """What leads behind a release: the live one, the one before, and so on, as far as backups are kept.

    And what leads to before the first of them, each with those paths only that it is the backup for. Empty
    where one of them is gone; others may be: they are not needed.
    """
    line = of_live(site_dir)
    whole = next((n for n, link in enumerate(line) if not link.kept), len(line))
    return line[:whole], _to_base(site_dir, line)


def _to_base(site_dir: Path, line: list[Link]) -> list[Link]:
    """The first release, and for each path the first that changed it, newest first.

    Where nothing was at the path it may as well be the last that made it anew; and none, if it is gone again
    (each version has a dist-info folder of its own).
    """
    found: dict[str, Link] = {}
    for link in reversed(line):
        for path in link.paths:
            if path not in found or (path in found[path].new and path in link.new):
                found[path] = link
    owned = (releases.installed(site_dir) or {}).get("files", {})
    needed = []
    for link in line:
        own = {p: r for p, r in link.paths.items() if found[p] is link and (p in owned or p not in link.new)}
        if own or not link.previous:
            needed.append(link._replace(paths=own))
    whole = bool(line) and not line[-1].previous and all(link.kept for link in needed)
    return needed if whole else []


def prune(site_dir: Path, keep: set[str]) -> None:
    """Remove old runs, but for those of `keep`, those at work, and those that are needed.

    Needed are the newest backups, those of the newest releases in the line, what leads to before the first,
    and runs without a verdict.
    """
    line = of_live(site_dir)
    live = str((releases.installed(site_dir) or {}).get("release", ""))
    protected = keep | {live, *(link.run for link in line[:KEEP_BACKUPS])}
    protected |= {entry["previous"] for entry in releases.lines(site_dir) if entry["run"] in protected}
    protected |= {link.run for link in _to_base(site_dir, line)}
    runs = sorted(
        (p for p in (site_dir / "runs").iterdir() if p.is_dir()), key=lambda p: p.name, reverse=True
    )
    backups = [p for p in runs if (p / "backup").is_dir()]
    for position, run_dir in enumerate(runs):
        kept = run_dir in backups[:KEEP_BACKUPS] or (run_dir not in backups and position < KEEP_RUNS)
        if run_dir.name in protected or kept or is_held(run_dir / layout.ALIVE):
            continue
        if not (run_dir / layout.JOURNAL).exists() and time.time() - run_dir.stat().st_mtime < 3600:
            continue  # a controller may be sending it right now
        if not releases.unfinished(run_dir):
            shutil.rmtree(run_dir, ignore_errors=True)
