"""Keep every path that will change, as it is, and what the service was. Changes nothing that is live."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..context import Context, StepFailed
from ..service import serving
from ..state import durable, layout, releases
from ..venv import bytecode, tree
from ..venv.files import Entry


def do(ctx: Context) -> str:
    folder = ctx.backup_dir
    folder.mkdir(mode=0o700)
    files = ctx.files()
    entries: list[Entry] = []
    bases = 0
    for number, target in enumerate(ctx.plan.targets):
        ctx.check()
        # Where nothing will change, the live file stays; a later edit in place must not reach the backup.
        entry = files.keep(target.path, str(folder), f"b{number:04d}", link=target.before != target.sha256)
        if entry.sha256 != target.before:
            raise StepFailed(f"{target.ref} changed since the plan was made", exit_code=6)
        entries.append(entry)
        beside = bytecode.legacy(target.path)
        if beside and files.disk.lstat(beside) is not None:
            entries.append(files.keep(beside, str(folder), f"c{number:04d}"))
        if target.base_sha256 and target.before == target.base_sha256 and entry.kind == "file":
            releases.keep_base(ctx.state_dir, files.disk.read(target.path))
            bases += 1
    if ctx.plan.service is not None:
        ctx.progress("recording the service")
        serving.control_of(ctx).record(folder)
    releases.save_previous(ctx.state_dir, ctx.run_dir)
    durable.write_json(folder / "tree.json", {r: tree.snapshot(r) for r in roots(ctx)})
    durable.write_json(folder / layout.MANIFEST, {"entries": [dataclasses.asdict(e) for e in entries]})
    present = [e for e in entries if e.kind != "absent"]
    linked = sum(1 for e in present if e.stored and (folder / e.stored).stat().st_nlink > 1)
    ctx.result(paths=len(entries), present=len(present), hard_links=linked, bases=bases)
    return f"{len(present)} files kept ({linked} as hard links), {len(entries) - len(present)} paths absent"


def roots(ctx: Context) -> list[str]:
    """The package folders whose digest must be the same again after an undo."""
    found = [ctx.plan.package_dir] if ctx.plan.package_dir else []
    for target in ctx.plan.targets:
        if not any(target.path.startswith(r + "/") for r in found):
            top = target.path[len(ctx.plan.site) + 1 :].split("/")[0]
            root = f"{ctx.plan.site}/{top}"
            if root not in found:
                found.append(root)
    return found


def live_changes(ctx: Context) -> list[str]:
    """What differs in the package folders from the time of the backup, as `+path`, `-path`, `~path`."""
    recorded: Any = layout.read_json(ctx.backup_dir / "tree.json")
    found = []
    for root, before in (recorded or {}).items():
        found += [
            f"{c[0]}{root}" + ("" if c[1:] == "." else f"/{c[1:]}")
            for c in tree.changes(before, tree.snapshot(root))
        ]
    return found
