"""What is live, and what was: installed.json, releases.jsonl, bases/."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..venv.disk import sync
from ..venv.files import sha256
from ..wire.kinds import TABLE
from ..wire.protocol import Plan, to_dict
from . import durable, layout
from .held import is_held
from .journal import read as read_journal

INSTALLED = "installed.json"
RELEASES = "releases.jsonl"
BASES = "bases"
SERVING = "serving"  # folder of a run: the service as it was started with that release
APPLIED = "launch.json"  # of a run: the launch that it leaves the service with


def installed(site_dir: Path) -> dict[str, Any] | None:
    """installed.json, or None when nothing of ours is live."""
    value = layout.read_json(site_dir / INSTALLED)
    return value if isinstance(value, dict) else None


def lines(site_dir: Path) -> list[dict[str, Any]]:
    """releases.jsonl, oldest first, a run once with its last verdict; a torn last line is left out."""
    try:
        raw = (site_dir / RELEASES).read_bytes()
    except FileNotFoundError:
        return []
    found: dict[str, dict[str, Any]] = {}
    for line in raw[: raw.rfind(b"\n") + 1].splitlines():
        value = json.loads(line)
        if isinstance(value, dict):
            found[str(value.get("run", ""))] = value
    return list(found.values())


def keep_base(site_dir: Path, data: bytes) -> str:
    """Keep the pristine content of an upstream file under its digest; the digest."""
    digest = sha256(data)
    folder = site_dir / BASES
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / digest
    if base(site_dir, digest) is None:
        durable.replace(path, data)
    return digest


def base(site_dir: Path, digest: str) -> bytes | None:
    """A kept base, if it is there and intact."""
    try:
        data = (site_dir / BASES / digest).read_bytes()
    except OSError:
        return None
    return data if sha256(data) == digest else None


def save_previous(site_dir: Path, run_dir: Path) -> None:
    """Keep what installed.json says before this run; once."""
    path = run_dir / layout.PREVIOUS
    if not path.exists():
        durable.write_json(path, installed(site_dir))


def commit(plan: Plan, run_dir: Path, made_dirs: list[str], verdict: str = "good") -> None:
    """Record a run whose gates all passed, or (`held`) that waits for a person. Idempotent; the order
    survives a crash between any two writes."""
    site_dir = run_dir.parent.parent
    previous = layout.read_json(run_dir / layout.PREVIOUS)
    new = _wanted_installed(plan, site_dir, previous, made_dirs)
    if new is None:
        durable.remove(site_dir / INSTALLED)
    else:
        durable.write_json(site_dir / INSTALLED, new)
    # How far kept backups lead back is known from here, whatever of the runs is pruned.
    changed = {t.path: t.ref for t in plan.targets}
    made = [t.path for t in plan.targets if not t.before]
    _append(plan, site_dir, verdict, (previous or {}).get("release", ""), changed=changed, new=made)


def to_be(plan: Plan, run_dir: Path) -> dict[str, Any] | None:
    """What installed.json says once this run is committed; None for nothing of ours."""
    site_dir = run_dir.parent.parent
    if plan.action not in ("rollout", "rollback"):
        return installed(site_dir)
    return _wanted_installed(plan, site_dir, layout.read_json(run_dir / layout.PREVIOUS), [])


def carried(plan: Plan, site_dir: Path) -> str:
    """The release id that a service which this run starts carries in its environment; "" for none.

    A rollout without launch edits leaves a unit as it is; a process of ours always carries it.
    """
    service = plan.service
    if plan.action != "rollout":
        return str((installed(site_dir) or {}).get("carries", ""))
    return plan.run if service and (service.kind != "systemd" or service.launch.edits) else ""


def applied(site_dir: Path, run_dir: Path) -> None:
    """A sweep has left the service with another launch: that is the live release's now. Idempotent."""
    launch, live = layout.read_json(run_dir / APPLIED), installed(site_dir)
    if launch is None or live is None:
        return
    durable.write_json(site_dir / INSTALLED, {**live, "launch": launch})
    home = site_dir / "runs" / str(live["release"]) / SERVING
    if home.is_dir():
        for file in (run_dir / SERVING).iterdir():
            durable.replace(home / file.name, file.read_bytes(), 0o600)


def _wanted_installed(
    plan: Plan, site_dir: Path, previous: dict[str, Any] | None, made_dirs: list[str]
) -> dict[str, Any] | None:
    if plan.action == "rollback" and plan.undoes:
        value = layout.read_json(site_dir / "runs" / plan.undoes / layout.PREVIOUS)
        return value if isinstance(value, dict) else None
    targets = {t.path for t in plan.targets}
    files = {p: f for p, f in (previous or {}).get("files", {}).items() if p not in targets}
    for t in plan.targets:
        if t.source.startswith(("blob:", "patch:")):
            files[t.path] = {"sha256": t.sha256, "mode": t.mode, "ref": t.ref, "base_sha256": t.base_sha256}
    if not files and plan.action == "rollback":
        return None
    dirs = sorted({*(previous or {}).get("dirs", []), *made_dirs})
    return {
        "release": plan.run if plan.action == "rollout" else plan.back_to,
        "digest": plan.release,
        "payload": plan.payload_name,
        "version": plan.payload_version,
        "variant": plan.variant,
        "files": files,
        "changed": {t.path: t.ref for t in plan.targets},
        "dirs": [d for d in dirs if Path(d).is_dir()],
        "launch": to_dict(plan.service.launch) if plan.service is not None else None,
        "carries": carried(plan, site_dir),
        "serves": to_dict(plan.serves) if plan.serves is not None else None,
    }


def record_failure(plan: Plan, site_dir: Path, verdict: str, step: str) -> None:
    """Note a run that was put back: `bad` when a gate said that the payload is, else `rolled-back`."""
    kinds = {s.name: s.kind for s in plan.steps}
    if not any(k == "install" for k in kinds.values()) or TABLE[kinds.get(step, "lock")].early:
        return
    bad = verdict == "fail" and plan.action == "rollout"
    _append(plan, site_dir, "bad" if bad else "rolled-back", (installed(site_dir) or {}).get("release", ""))


def _append(plan: Plan, site_dir: Path, verdict: str, previous: str, **more: Any) -> None:
    if any(line.get("run") == plan.run for line in lines(site_dir)):
        return
    _write_line(
        site_dir,
        {
            "run": plan.run,
            "time": layout.time_text(),
            "who": plan.who,
            "action": plan.action,
            "payload": plan.payload_name,
            "version": plan.payload_version,
            "variant": plan.variant,
            "digest": plan.release,
            "verdict": verdict,
            "previous": previous,
            **more,
        },
    )


def confirm(site_dir: Path, run: str, who: str) -> None:
    """A held release is good. Raises LookupError when it is not live, or not held."""
    line = next((line for line in lines(site_dir) if line.get("run") == run), None)
    live = (installed(site_dir) or {}).get("release", "")
    if line is None or live != run:
        raise LookupError(f"{run} is not the release that is live ({live or 'none of ours'})")
    if line["verdict"] != "held":
        raise LookupError(f"{run} is not held, it is {line['verdict']}")
    _write_line(site_dir, {**line, "verdict": "good", "confirmed_by": who, "confirmed": layout.time_text()})


def _write_line(site_dir: Path, entry: dict[str, Any]) -> None:
    """Append durably; a line that a crash tore is cut off first.

    Raises OSError, with the file as it was.
    """
    path = site_dir / RELEASES
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        whole = os.pread(fd, size, 0).rfind(b"\n") + 1
        os.ftruncate(fd, whole)  # a line that a crash tore
        try:
            line = json.dumps(entry).encode() + b"\n"
            if os.pwrite(fd, line, whole) != len(line):
                raise OSError(28, "no space left on device", str(path))
        except OSError:
            os.ftruncate(fd, whole)
            raise
        os.fsync(fd)
    finally:
        os.close(fd)
    sync(site_dir)


def attempts(site_dir: Path) -> dict[str, str]:
    """Digest -> "bad" for releases whose last verdict is bad."""
    last = {line["digest"]: line["verdict"] for line in lines(site_dir) if line["action"] == "rollout"}
    return {digest: "bad" for digest, verdict in last.items() if verdict == "bad"}


def unfinished(run_dir: Path) -> bool:
    """Did this run end without a verdict, or with an undo that did not succeed?

    One that has not yet said that it has the lock may be waiting for it, unless its runner is dead. One
    that has no journal yet was not received whole, or did not begin, unless its launch lives.
    """
    events, _ = read_journal(run_dir / layout.JOURNAL)
    if not events:
        left = any((run_dir / name).exists() for name in layout.RECEIVED)
        return left and not is_held(run_dir) and not is_held(run_dir / layout.ALIVE)
    ends = [e for e in events if e["e"] == "end"]
    if any(e["e"] == "locked" for e in events):
        return not ends or ends[-1]["exit"] == 3
    return not ends and not is_held(run_dir / layout.ALIVE)
