"""The staged release: a folder that holds every wanted file before any is installed.

STAGE/payload/{blobs,checks,attachments}/   the archive, unpacked
STAGE/new/NNNN                              content of target number NNNN
STAGE/farm/                                 what goes first on PYTHONPATH for the smoke checks (overlay.py)
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..context import Context, StepFailed
from ..programs.process import other_user, run_process
from ..service import serving
from ..service.base import ServiceError
from ..state import durable, layout
from ..venv.files import Entry, sha256
from ..wire.protocol import Target


@dataclass(frozen=True)
class Wanted:
    """What one target is to become. `entry` is set where a kept state is restored."""

    path: str
    ref: str
    kind: str  # file | symlink | absent
    sha256: str
    mode: int
    before: str
    staged: str = ""  # path of the staged content; files only
    entry: Entry | None = None
    backup: str = ""  # folder that `entry.stored` is in


def run_as(ctx: Context) -> str:
    """The user that venv code runs as when we are root and it is another; else "".

    The service's; without a service the owner of the venv.
    """
    if ctx.run_as is None:
        ctx.run_as = other_user(_service_user(ctx) if ctx.plan.service else _venv_owner(ctx))
    return ctx.run_as


def _service_user(ctx: Context) -> str:
    assert ctx.plan.service is not None
    try:
        return serving.control_of(ctx).owner() or ctx.plan.service.user
    except (ServiceError, OSError):  # preflight refuses such a service, with the reason
        return ctx.plan.service.user


def _venv_owner(ctx: Context) -> str:
    try:
        return pwd.getpwuid(os.stat(ctx.plan.site).st_uid).pw_name
    except (KeyError, OSError):
        return ""


def public_folder(ctx: Context) -> Path:
    return Path("/var/tmp") / f"ddtree-deploy-{ctx.plan.run}"


def root(ctx: Context) -> Path:
    """The stage folder. Our state is 0700; another user's process needs a folder that it can reach."""
    return public_folder(ctx) if run_as(ctx) else ctx.stage_dir


def payload_file(ctx: Context, name: str) -> Path:
    """A file of the archive, such as `attachments/prompts.jsonl`, after the stage step. Raises StepFailed."""
    path = root(ctx) / "payload" / name
    if ".." in Path(name).parts or not path.is_file():
        raise StepFailed(f"the payload has no {name}")
    return path


def make(ctx: Context) -> Path:
    """A fresh, empty stage folder."""
    remove_stage(ctx)
    ctx.stage_dir.mkdir(mode=0o700)
    folder = root(ctx)
    if folder != ctx.stage_dir:
        folder.mkdir(mode=0o755)  # an existing one is somebody else's: refused
    (folder / "new").mkdir(mode=0o755)
    return folder


def remove_stage(ctx: Context) -> None:
    """Delete the stage. Idempotent."""
    for folder in (public_folder(ctx), ctx.stage_dir):
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
            shutil.rmtree(folder)


def ask_python(ctx: Context, argv: list[str], trouble: str) -> Any:
    """The JSON value in the last line that the venv's Python prints. Raises StepFailed."""
    done = run_process(ctx, [ctx.plan.python, "-I", *argv], user=run_as(ctx), on_line=lambda line: None)
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = trouble.format(rc=done.rc)
        raise StepFailed(f"{ctx.plan.python} {said}: {done.output.strip()[-300:]}") from None


def save(ctx: Context, wanted: list[Wanted]) -> None:
    durable.write_json(ctx.stage_dir / "wanted.json", [dataclasses.asdict(w) for w in wanted])


def wanted(ctx: Context) -> list[Wanted]:
    """What the stage step decided. Raises StepFailed when it has not run."""
    data: Any = layout.read_json(ctx.stage_dir / "wanted.json")
    if data is None:
        raise StepFailed("nothing is staged: the stage step has not run")
    return [Wanted(**{**w, "entry": Entry(**w["entry"]) if w["entry"] else None}) for w in data]


def content(w: Wanted) -> bytes:
    """The staged bytes of a file, which are still those that were staged. Raises StepFailed."""
    data = Path(w.staged).read_bytes()
    if sha256(data) != w.sha256:
        raise StepFailed(f"the staged copy of {w.ref} was changed")
    return data


def kept_entry(ctx: Context, target: Target) -> tuple[Entry, Path]:
    """For `backup:RUN`: what that run recorded for the path, and its backup folder. Raises StepFailed (6)."""
    run = target.source.partition(":")[2]
    folder = ctx.state_dir / "runs" / run / "backup"
    entries = read_manifest(folder)
    if target.path not in entries:
        raise StepFailed(f"run {run} kept no state of {target.ref}; its backup is gone", exit_code=6)
    return entries[target.path], folder


def read_manifest(folder: Path) -> dict[str, Entry]:
    """Path -> recorded state, of a backup folder; empty when there is none."""
    data = layout.read_json(folder / layout.MANIFEST)
    return {e["path"]: Entry(**e) for e in data["entries"]} if isinstance(data, dict) else {}
