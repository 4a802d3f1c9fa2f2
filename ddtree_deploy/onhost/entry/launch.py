"""A run begins: take plan and payload from fd 0, check them, start the runner, follow it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from pathlib import Path

from ..programs import detach
from ..run.follow import follow, heartbeat
from ..staging import archive
from ..state import code, layout
from ..venv.disk import sync
from ..venv.files import Files
from ..wire import kinds
from ..wire.protocol import PROTOCOL, STATE_UNTOUCHED, Plan, ProtocolError, from_dict
from . import receive, signature

RESERVE_BYTES = 256 * 1024


def launch(header: bytes, sources: bytes) -> int:
    """Returns the run's exit code; for what this runner does not take 1, 2 or 4, with nothing left behind.

    header: `{"run_dir": ..., "plan": N, "payload": N}`, their lengths on fd 0. sources: our own, as a zip.
    """
    os.umask(0o077)
    made: list[Path] = []
    try:
        head = json.loads(header)
        run_dir = Path(head["run_dir"])
        _make(run_dir, made)
        code.place(run_dir, sources)  # first: what is found here after a power cut has what recovers it
        receive.into_file(0, run_dir / layout.PLAN, head["plan"])
        receive.into_file(0, run_dir / layout.PAYLOAD, head["payload"])
        accept(run_dir)
        (run_dir / "logs").mkdir(mode=0o700)
        (run_dir / layout.RESERVE).write_bytes(b"\0" * RESERVE_BYTES)
        for folder in (run_dir, *(path.parent for path in made)):
            sync(folder)
    except EOFError as error:
        return _refuse(made, 4, str(error))
    except (ProtocolError, archive.BadArchive) as error:
        return _refuse(made, 2, f"the plan was refused: {error}")
    except ValueError as error:
        return _refuse(made, 4, f"the connection ended within the request: {error}")
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _refuse(made, 1, f"cannot start on the host: {error.strerror or error}{where}")
    with contextlib.suppress(OSError):  # nobody listens any more
        heartbeat()  # who has not heard this knows that nothing was started
    detach.start(run_dir)
    return follow(run_dir, 0)


def _make(run_dir: Path, made: list[Path]) -> None:
    """A new run folder, and those that it lies in; each is added to `made` at once."""
    for folder in (*reversed(run_dir.parents), run_dir):
        try:
            folder.mkdir(mode=0o700)
            made.append(folder)
        except FileExistsError:
            if folder == run_dir:
                raise FileExistsError(17, "the run folder exists already", str(run_dir)) from None
    # As long as this process lives the run has a launch; never closed.
    fcntl.flock(os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX | fcntl.LOCK_NB)


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


def _refuse(made: list[Path], exit_code: int, reason: str) -> int:
    """One `end` line, and no trace of the run."""
    if made:
        shutil.rmtree(made[-1], ignore_errors=True)
    for folder in reversed(made[:-1]):
        with contextlib.suppress(OSError):  # others may use it already
            folder.rmdir()
    event = {
        "e": "end",
        "run": made[-1].name if made else "",
        "verdict": "fail",
        "exit": exit_code,
        "state": STATE_UNTOUCHED,
        "step": "launch",
        "reason": reason,
        "next": "",
    }
    with contextlib.suppress(OSError):
        print(json.dumps(event, separators=(",", ":")), flush=True)
    return exit_code
