"""Put the whole wanted state into a folder apart, and check every byte of it."""

from __future__ import annotations

import dataclasses

from ..context import Context, StepFailed
from ..staging import archive, overlay, patch, stage
from ..staging.stage import Wanted
from ..state import layout, releases
from ..venv.files import Files, sha256
from ..wire.protocol import Target


def do(ctx: Context) -> str:
    folder = stage.make(ctx)
    if ctx.plan.payload_digest:
        try:
            archive.unpack(ctx.run_dir / layout.PAYLOAD, folder / "payload", ctx.plan.payload_digest)
        except archive.BadArchive as error:
            raise StepFailed(f"payload refused: {error}") from None
    files = ctx.files()
    wanted: list[Wanted] = []
    for number, target in enumerate(ctx.plan.targets):
        ctx.check()
        w, data = _resolve(ctx, files, target)
        if data is not None:
            path = folder / "new" / f"{number:04d}"
            path.write_bytes(data)
            path.chmod(0o644)
            w = dataclasses.replace(w, staged=str(path))
        wanted.append(w)
    stage.save(ctx, wanted)
    links = overlay.build(folder / "farm", wanted, ctx.plan.package_dir, ctx.plan.site)
    present = [w for w in wanted if w.kind != "absent"]
    size = sum((folder / "new" / f"{n:04d}").stat().st_size for n, w in enumerate(wanted) if w.staged)
    ctx.result(files=len(present), bytes=size, links=links)
    return f"{len(present)} files, {size} bytes, digests equal"


def _resolve(ctx: Context, files: Files, target: Target) -> tuple[Wanted, bytes | None]:
    kind, _, name = target.source.partition(":")
    if kind == "absent":
        return Wanted(target.path, target.ref, "absent", "", 0, target.before), None
    if kind == "backup":
        entry, folder = stage.kept_entry(ctx, target)
        data = files.disk.read(str(folder / entry.stored)) if entry.kind == "file" else None
        if data is not None and sha256(data) != entry.sha256:
            raise StepFailed(f"run {name}'s backup of {target.ref} was changed since", exit_code=6)
        if target.sha256 not in ("?", entry.sha256):
            raise StepFailed(f"run {name}'s backup of {target.ref} is not what the plan wants", exit_code=6)
        now = (entry.kind, entry.sha256, entry.mode, target.before)
        return Wanted(target.path, target.ref, *now, entry=entry, backup=str(folder)), data
    data = _content(ctx, files, target, kind, name)
    found = sha256(data)
    if found != target.sha256:
        raise StepFailed(
            f"{target.ref} from {target.source} has digest {found[:12]}, the plan says {target.sha256[:12]}"
        )
    return Wanted(target.path, target.ref, "file", found, target.mode, target.before), data


def _content(ctx: Context, files: Files, target: Target, kind: str, name: str) -> bytes:
    if kind == "blob":
        return stage.payload_file(ctx, f"blobs/{name}").read_bytes()
    if kind == "base":
        return _base(ctx, files, target)
    if kind == "patch":
        diff = stage.payload_file(ctx, f"blobs/{name}").read_bytes()
        try:
            return patch.apply(_base(ctx, files, target), diff)
        except patch.PatchError as error:
            raise StepFailed(f"patch {name} does not apply to {target.ref}: {error}") from None
    raise StepFailed(f"{target.ref}: this runner does not know the source {target.source!r}")


def _base(ctx: Context, files: Files, target: Target) -> bytes:
    """The pristine upstream file: the live one if it is that, else the kept one."""
    if target.before == target.base_sha256:
        data = files.disk.read(target.path)
        if sha256(data) == target.base_sha256:
            return data
    kept = releases.base(ctx.state_dir, target.base_sha256)
    if kept is None:
        raise StepFailed(
            f"the upstream file of {target.ref} ({target.base_sha256[:12]}) is neither live nor kept",
            exit_code=6,
        )
    return kept
