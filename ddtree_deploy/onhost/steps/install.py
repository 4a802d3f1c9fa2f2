"""Put the service's launch, then every path, into the wanted state. The only step that changes the venv."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ..context import Context, StepFailed, UndoFailed
from ..recovery import boot_guard
from ..service import serving
from ..staging import stage
from ..staging.stage import Wanted
from ..state import releases
from ..venv import bytecode
from ..venv.files import Entry, Files
from .backup import live_changes

# Asks the venv's interpreter, without importing them, where it finds top-level modules.
FIND = """
import importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    found[name] = places[0] if places else (spec.origin if spec else None)
print(json.dumps(found))
"""


def do(ctx: Context) -> str:
    files = ctx.files()
    recorded = stage.read_manifest(ctx.backup_dir)
    wanted = stage.wanted(ctx)
    boot_guard.put(ctx)
    launch = _launch(ctx)  # systemd reads the guard with it: before a file is changed
    _require_down(ctx)
    changed = 0
    for w in wanted:
        ctx.check()
        if w.path not in recorded:
            raise StepFailed(f"{w.ref} is not in the backup: nothing may change it")
        changed += _bring(ctx, files, w, recorded[w.path])
        changed += _legacy_bytecode(ctx, files, w, recorded)
    _drop_folders(ctx, files, wanted)
    _verify(ctx, files, wanted)
    ctx.result(changed=changed, launch=launch)
    return f"{changed} files changed, {len(wanted) - changed} as they were" + (
        f"; {launch}" if launch else ""
    )


def _require_down(ctx: Context) -> None:
    """What `stop` ended is still down; until now a start by hand was not kept from it."""
    if ctx.plan.service is None or all(s.kind != "stop" for s in ctx.plan.steps):
        return
    if serving.control_of(ctx).active():
        raise StepFailed("the service was started by somebody after it had been stopped")


def _bring(ctx: Context, files: Files, w: Wanted, before: Entry) -> int:
    """One path; the number of changes made."""
    now = files.look(w.path)
    if not now.same(before):
        raise StepFailed(f"{w.ref} changed since the backup: {before.difference(now)}", exit_code=6)
    if _is_wanted(now, w):
        return 0
    if w.kind != "absent":
        for folder in files.missing_folders(w.path):
            ctx.intent(op="mkdir", path=folder)
            files.make_folder(folder)
    ctx.intent(op="place", path=w.path, ref=w.ref, before=dataclasses.asdict(before), new=w.sha256)
    if w.kind == "absent":
        files.remove(w.path)
    elif w.entry is not None:
        files.restore(w.entry, w.backup)
    else:
        files.place(w.path, stage.content(w), w.mode)
    ctx.progress(f"{w.ref}: {'removed' if w.kind == 'absent' else 'in place'}")
    return 1


def _is_wanted(now: Entry, w: Wanted) -> bool:
    if w.entry is not None:
        return now.same(w.entry)
    if w.kind == "absent":
        return now.kind == "absent"
    return (now.kind, now.sha256, now.mode) == ("file", w.sha256, w.mode)


def _legacy_bytecode(ctx: Context, files: Files, w: Wanted, recorded: dict[str, Entry]) -> int:
    """`x.pyc` beside `x.py`: gone with a new source, back with a restored one."""
    path = bytecode.legacy(w.path)
    if not path:
        return 0
    before = recorded.get(path, Entry(path, "absent"))
    old = stage.read_manifest(ctx.state_dir / "runs" / _run_of(w) / "backup").get(path) if w.backup else None
    if before.kind == "absent" and old is None:
        return 0
    ctx.intent(
        op="place",
        path=path,
        ref=w.ref + "c",
        before=dataclasses.asdict(before),
        new=old.sha256 if old else "",
    )
    if old is not None:
        files.restore(old, w.backup)
    else:
        files.remove(path)
    return 0


def _run_of(w: Wanted) -> str:
    return os.path.basename(os.path.dirname(w.backup))


def _drop_folders(ctx: Context, files: Files, wanted: list[Wanted]) -> None:
    """Folders that a release of ours made and that are empty now."""
    ours = (releases.installed(ctx.state_dir) or {}).get("dirs", [])
    gone = [w.path for w in wanted if w.kind == "absent"]
    for folder in sorted(ours, reverse=True):
        if not any(p.startswith(folder + "/") for p in gone):
            continue
        now = files.look(folder)
        held = [n for n in files.disk.listdir(folder) if n != bytecode.CACHE]
        if now.kind == "dir" and not held:
            ctx.intent(op="rmdir", path=folder, mode=now.mode, uid=now.uid, gid=now.gid)
            files.remove_folder(folder)


def _verify(ctx: Context, files: Files, wanted: list[Wanted]) -> None:
    wrong = [w.ref for w in wanted if not _is_wanted(files.look(w.path), w)]
    stale = bytecode.stale([w.path for w in wanted], files.disk)
    if wrong or stale:
        raise StepFailed(f"after the install these are not as planned: {', '.join(wrong + stale)}")
    expected = _expected_places(ctx, wanted)
    if not expected:
        return
    found = stage.ask_python(ctx, ["-B", "-c", FIND, *expected], "cannot say where packages are")
    for name, place in expected.items():
        if found[name] is None or os.path.realpath(found[name]) != os.path.realpath(place):
            raise StepFailed(f"Python finds {name} at {found[name]}, it was installed at {place}")


def _expected_places(ctx: Context, wanted: list[Wanted]) -> dict[str, str]:
    """Top-level module -> the folder or file that find_spec must give."""
    package = ctx.plan.package_dir
    expected = {os.path.basename(package): package} if package else {}
    for w in wanted:
        rel = w.path[len(ctx.plan.site) + 1 :] if w.path.startswith(ctx.plan.site + "/") else ""
        top, _, rest = rel.partition("/")
        if w.kind == "file" and rest == "__init__.py":
            expected.setdefault(top, f"{ctx.plan.site}/{top}")
        elif w.kind == "file" and not rest and top.endswith(".py"):
            expected.setdefault(top[:-3], w.path)
    return expected


def _launch(ctx: Context) -> str:
    """The command line of the next start."""
    if ctx.plan.service is None:
        return ""
    control = serving.control_of(ctx)
    ctx.intent(op="launch")
    if ctx.plan.action == "rollback" and ctx.plan.undoes:
        control.restore_launch(ctx, ctx.state_dir / "runs" / ctx.plan.undoes / "backup")
        return "launch as before"
    control.apply_launch(ctx)
    ctx.done()
    return "launch edited"


def undo(ctx: Context, intents: list[dict[str, Any]]) -> None:
    files = ctx.files()
    for intent in reversed(intents):
        op = intent["op"]
        if op == "launch":
            serving.control_of(ctx).restore_launch(ctx, ctx.backup_dir)
        elif op == "place":
            entry = Entry(**intent["before"])
            files.sweep(os.path.dirname(entry.path))
            _keep_foreign(ctx, files, entry, intent["new"])
            if files.disk.lstat(os.path.dirname(entry.path)) is not None:
                files.restore(entry, str(ctx.backup_dir))
        elif op == "mkdir":
            left = files.remove_folder(intent["path"])
            if left:
                ctx.progress(f"kept {intent['path']}: it holds what is not ours ({', '.join(left[:3])})")
        elif op == "rmdir":
            files.make_folder(intent["path"], intent["mode"], intent["uid"], intent["gid"])


def _keep_foreign(ctx: Context, files: Files, entry: Entry, new: str) -> None:
    """Somebody edited the file after us: the recorded state comes back, their edit is kept apart."""
    now = files.look(entry.path)
    if now.kind != "file" or now.sha256 in (entry.sha256, new):
        return
    name = f"foreign-{os.path.basename(entry.path)}-{now.sha256[:12]}"
    if not (ctx.backup_dir / name).exists():
        files.keep(entry.path, str(ctx.backup_dir), name, link=False)
    ctx.progress(f"{entry.path} was edited by somebody else during the run; kept as {ctx.backup_dir / name}")


def check_undone(ctx: Context, intents: list[dict[str, Any]]) -> None:
    files = ctx.files()
    wrong: list[str] = []
    entries = [Entry(**i["before"]) for i in intents if i["op"] == "place"]
    for entry in entries:
        difference = entry.difference(files.look(entry.path))
        if difference:
            wrong.append(f"{entry.path} {difference}")
        folder = os.path.dirname(entry.path)
        wrong += [
            f"{folder}/{n} is left over" for n in files.disk.listdir(folder) if n.startswith(files.prefix)
        ]
    wrong += [f"{path} is stale" for path in bytecode.stale([e.path for e in entries], files.disk)]
    for intent in intents:
        # One that holds what is not ours was kept, and said so.
        if intent["op"] == "mkdir" and files.is_empty_folder(intent["path"]):
            wrong.append(f"the folder {intent['path']} is left over")
        elif intent["op"] == "rmdir" and files.look(intent["path"]).kind != "dir":
            wrong.append(f"the folder {intent['path']} is missing")
    if any(i["op"] == "launch" for i in intents):
        difference = serving.control_of(ctx).launch_restored(ctx.backup_dir)
        if difference:
            wrong.append(difference)
    if wrong:
        raise UndoFailed("; ".join(wrong[:5]))
    others = live_changes(ctx)
    if others:  # not by us: our paths are as recorded
        ctx.progress(f"changed by others during the run: {', '.join(others[:5])}")
