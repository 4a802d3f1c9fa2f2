"""What `boot` becomes: take plan and payload from fd 0, check them, start the runner, follow it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from ..programs import detach
from ..run.follow import follow
from ..staging import archive
from ..state import codecache, layout
from ..venv.disk import sync_folder
from ..venv.files import Files
from ..wire import kinds
from ..wire.protocol import PROTOCOL, STATE_UNTOUCHED, Plan, ProtocolError, from_dict
from . import signature

RESERVE_BYTES = 256 * 1024


def launch(run_dir: Path, plan_length: int, payload_length: int) -> int:
    """Returns the run's exit code; 2 for a plan that this runner does not take, with nothing left behind."""
    os.umask(0o077)
    try:
        receive(0, run_dir / layout.PLAN, plan_length)
        if not (run_dir / layout.PAYLOAD).exists():  # it came ahead
            receive(0, run_dir / layout.PAYLOAD, payload_length)
        accept(run_dir)
        (run_dir / "logs").mkdir(mode=0o700)
        (run_dir / layout.RESERVE).write_bytes(b"\0" * RESERVE_BYTES)
        sync_folder(run_dir)
        sync_folder(run_dir.parent)
    except EOFError as error:
        return _refuse(run_dir, 4, str(error))
    except (ProtocolError, archive.BadArchive) as error:
        return _refuse(run_dir, 2, f"the plan was refused: {error}")
    except OSError as error:
        return _refuse(run_dir, 1, f"cannot write {run_dir}: {error.strerror or error}")
    detach.start(run_dir)
    codecache.store()
    codecache.keep_runner()
    return follow(run_dir, 0)


def receive(fd: int, path: Path, length: int) -> None:
    """Exactly `length` bytes of `fd` into a new file, durably; not one byte more is read. Raises EOFError."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while length:
            data = os.read(fd, min(length, 1 << 20))
            if not data:
                raise EOFError(f"the connection ended {length} bytes before the end of {path.name}")
            length -= len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(out, view) :]
        os.fsync(out)
    finally:
        os.close(out)


def accept(run_dir: Path) -> Plan:
    """The plan, if this runner can carry it out. Raises ProtocolError, BadArchive, OSError."""
    raw = json.loads((run_dir / layout.PLAN).read_bytes())
    if isinstance(raw, dict) and raw.get("protocol") != PROTOCOL:
        raise ProtocolError(f"protocol {raw.get('protocol')}, this runner speaks {PROTOCOL}")
    plan: Plan = from_dict(Plan, raw)
    names = [s.name for s in plan.steps]
    problem = ""
    if plan.run != run_dir.name:
        problem = f"run {plan.run} in a folder named {run_dir.name}"
    elif not plan.steps or plan.steps[0].kind != "lock":
        problem = "the first step must be lock"
    elif len(set(names)) != len(names):
        problem = "two steps have the same name"
    elif any(s.kind in ("lock", "unlock") for s in plan.steps[1:-1]):
        problem = "lock comes first and unlock last, once each"
    elif plan.on_inconclusive not in ("rollback", "hold"):
        problem = f"on_inconclusive: {plan.on_inconclusive!r} is not known"
    elif run_dir.parent.parent != layout.site_dir(layout.state_dir(plan.state_dir), plan.site):
        problem = f"{run_dir} is not in the state folder of {plan.site}"
    for spec in plan.steps:
        if spec.kind not in kinds.KINDS:
            problem = problem or f"step {spec.name}: unknown kind of step {spec.kind!r}"
    problem = problem or hostile(plan)
    if problem:
        raise ProtocolError(problem)
    if plan.payload_digest and archive.digest(run_dir / layout.PAYLOAD) != plan.payload_digest:
        raise archive.BadArchive("the payload that arrived is not the one that was planned (digest)")
    try:
        signature.check(plan, run_dir, run_dir.parents[3])
    except signature.NotSigned as error:
        raise ProtocolError(str(error)) from None
    return plan


def hostile(plan: Plan) -> str:
    """What in the paths of a plan no plan of ours has; empty for a good one. No controller is trusted."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", plan.run) or plan.run.startswith("."):
        return f"{plan.run!r} is no name of a run"
    files = Files([r for r in (plan.site, plan.package_dir) if r], layout.site_key(plan.site))
    for target in plan.targets:
        try:
            kind = files.look(files.confine(target.path)).kind
        except OSError as error:
            return f"{target.path!r} {error.strerror}"
        except ValueError as error:  # a NUL in a name
            return f"{target.path!r}: {error}"
        if kind == "other":
            return f"{target.path!r} is a device, a pipe or a socket"
        if target.mode & ~0o777:
            return f"{target.path!r} would get the mode {target.mode:o}"
        name = target.source.partition(":")[2]
        if name.startswith("/") or "\0" in name or ".." in name.split("/"):
            return f"{target.source!r} leaves the payload's root"
    return ""


def _refuse(run_dir: Path, code: int, reason: str) -> int:
    """One `end` line, and no trace of the run."""
    shutil.rmtree(run_dir, ignore_errors=True)
    event = {
        "e": "end",
        "run": run_dir.name,
        "verdict": "fail",
        "exit": code,
        "state": STATE_UNTOUCHED,
        "step": "launch",
        "reason": reason,
        "next": "",
    }
    try:
        sys.stdout.write(json.dumps(event, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except OSError:
        pass
    return code
