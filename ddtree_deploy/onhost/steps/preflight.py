"""Look again, under the lock: is the host still what the plan was made for, and can it take the change?

Each check raises StepFailed, or returns what it saw, for people.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from ..context import Context, StepFailed
from ..facts import host_facts
from ..programs.site_probe import ProbeError, Site
from ..service import command_line, imports, listener, serving
from ..staging import stage
from ..state import layout
from ..venv.files import FilesError
from ..wire.facts import ServiceFacts
from ..wire.kinds import stop_limit_s

# Beside the payload itself: the journal, logs, and room so that an undo never meets a full disk.
MARGIN_BYTES = 32 * 1024**2

# Of <linux/fs.h>.
FS_IOC_GETFLAGS = 0x80086601
FS_IMMUTABLE = 0x10
FS_APPEND = 0x20


def do(ctx: Context) -> str:
    """All checks, cheap ones first."""
    seen = [_drift(ctx), _disk(ctx)]
    service = _service(ctx)
    site = _interpreter(ctx)
    seen += [_versions(ctx, site), _gpus(ctx), _alone(ctx, service)]
    if service is not None:
        seen += [_models(ctx), _stop(ctx, service)]
        seen += [imports.check(ctx, serving.control_of(ctx), site, next_start=True), *service.warnings]
    return "; ".join(s for s in seen if s)


def _drift(ctx: Context) -> str:
    """Every path of the plan is still what it was planned for (else exit 6), and can be changed."""
    files = ctx.files()
    moved = []
    for target in ctx.plan.targets:
        try:
            files.confine(target.path)
        except FilesError as error:
            raise StepFailed(f"{target.ref}: {target.path} {error.strerror}") from None
        now = files.look(target.path)
        if now.kind in ("dir", "other"):
            raise StepFailed(f"{target.ref} is a {now.kind} on this host", exit_code=6)
        if now.kind == "file" and _pinned(target.path):
            raise StepFailed(f"{target.path} is immutable or append-only; chattr -ia makes it replaceable")
        if now.sha256 != target.before:
            found, planned = now.sha256[:12] or "absent", target.before[:12] or "absent"
            moved.append(f"{target.ref} is {found}, planned for {planned}")
    if moved:
        more = f" (and {len(moved) - 3} more)" if len(moved) > 3 else ""
        raise StepFailed(f"the host has moved since the plan: {'; '.join(moved[:3])}{more}", exit_code=6)
    for folder in sorted({os.path.dirname(t.path) for t in ctx.plan.targets}):
        _writable(folder)
    return f"{len(ctx.plan.targets)} paths as planned"


def _pinned(path: str) -> bool:
    """Whether `chattr` forbids to replace it, or in a folder: root's rename fails, with the service down."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # not every file can be read
        return False
    try:
        flags = fcntl.ioctl(fd, FS_IOC_GETFLAGS, b"\0" * 8)
    except OSError:  # not every file system has such flags
        return False
    finally:
        os.close(fd)
    return bool(int.from_bytes(flags[:4], sys.byteorder) & (FS_IMMUTABLE | FS_APPEND))


def _writable(wanted: str) -> None:
    folder = wanted
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise StepFailed(f"{folder} is on a file system that is mounted read-only")
    for place in (folder, os.path.join(folder, "__pycache__")):
        if _pinned(place):
            raise StepFailed(f"{place} is immutable or append-only; chattr -ia makes it writable")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StepFailed(f"no permission to write in {folder}")


def _disk(ctx: Context) -> str:
    payload = ctx.run_dir / layout.PAYLOAD
    # Unpacked, staged, in the overlay, and installed: each of them at most some times the archive.
    need = MARGIN_BYTES + 20 * (payload.stat().st_size if payload.exists() else 0)
    need = max(need, ctx.plan.min_free_bytes, int(ctx.option("min_free_bytes", 0)))
    places = {"the state folder": str(ctx.run_dir), "site-packages": ctx.plan.site}
    if ctx.plan.package_dir:
        places["the package"] = ctx.plan.package_dir
    least = min(host_facts.free_bytes(p) for p in places.values())
    for name, place in places.items():
        free = host_facts.free_bytes(place)
        if free < need:
            raise StepFailed(f"{free // 1024**2} MiB free at {name} ({place}), {need // 1024**2} MiB needed")
    return f"{least // 1024**2} MiB free"


def _interpreter(ctx: Context) -> Site:
    """The venv's Python still finds site-packages and the package where the plan says."""
    plan = ctx.plan
    package = os.path.basename(plan.package_dir)
    try:
        site = imports.planned(ctx)
    except ProbeError as error:
        raise StepFailed(f"the venv's Python does not answer: {error}") from None
    if site.purelib != plan.site:
        raise StepFailed(
            f"{plan.python} has its packages in {site.purelib}, planned for {plan.site}", exit_code=6
        )
    found = site.packages.get(package)
    if package and (found is None or os.path.realpath(found.folder) != os.path.realpath(plan.package_dir)):
        where = found.folder if found else "nowhere"
        raise StepFailed(f"{package} is at {where}, planned for {plan.package_dir}", exit_code=6)
    return site


def _versions(ctx: Context, site: Site) -> str:
    package = os.path.basename(ctx.plan.package_dir)
    found = site.packages.get(package)
    version = f", {package} {found.version}" if found and found.version != "?" else ""
    return f"Python {'.'.join(map(str, site.python_version))}{version}"


def _service(ctx: Context) -> ServiceFacts | None:
    """The service can be driven. From here on its secrets are masked in all that is written."""
    if ctx.plan.service is None:
        return None
    control = serving.control_of(ctx)
    with control.one_look():
        facts = listener.described(control)
        if facts.problem:
            raise StepFailed(f"service {ctx.plan.service.name}: {facts.problem}")
        if facts.differs and ctx.plan.action in ("rollout", "rollback") and not ctx.plan.accept_drift:
            raise StepFailed(facts.not_in_effect(), exit_code=6)
        hidden = {s for s in control.known_secrets() if len(s) >= 4}
    ctx.journal.secrets = sorted({*ctx.journal.secrets, *hidden}, key=len, reverse=True)
    return facts


def _stop(ctx: Context, service: ServiceFacts) -> str:
    """What a person should know of the stop that comes."""
    limit = stop_limit_s(ctx.plan.steps, ctx.plan.service)
    if limit is None:
        return ""
    short = service.short_limit(limit)
    along = f"stopped and started with it: {', '.join(service.dependents)}" if service.dependents else ""
    return "; ".join(filter(None, [along, short]))


def _gpus(ctx: Context) -> str:
    if ctx.plan.gpus is None:
        return ""
    found, problem = host_facts.gpus()
    if len(found) != ctx.plan.gpus:
        reason = f" ({problem})" if problem else ""
        raise StepFailed(f"{len(found)} GPUs found{reason}, {ctx.plan.gpus} expected")
    return f"{len(found)} GPUs"


def _alone(ctx: Context, service: ServiceFacts | None) -> str:
    """No process but the service uses this venv: it would import half a change."""
    plan = ctx.plan
    others = host_facts.users_of(plan.site, plan.python, service.pid if service else 0, plan.also_stop)
    if others:
        named = "; ".join(f"{p.pid}: {p.command}" for p in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise StepFailed(
            f"other processes use this venv: {named}{more}; end them, or name them in also_stop of hosts.yaml"
        )
    return ""


def _models(ctx: Context) -> str:
    """Local model and draft folders of the future command line exist and can be read."""
    argv = serving.control_of(ctx).future_argv()
    seen = []
    for flag in ("model-path", "model", "speculative-draft-model-path", "speculative-draft-model"):
        path = "".join((command_line.values_of(argv, flag) or [])[:1])
        if not path.startswith("/"):  # a name on a hub: nothing to look at here
            continue
        if not Path(path).exists():
            raise StepFailed(f"--{flag} {path} does not exist on this host")
        if not stage.run_as(ctx) and not os.access(path, os.R_OK):
            raise StepFailed(f"--{flag} {path} cannot be read")
        seen.append(path)
    return f"{len(seen)} model folders present" if seen else ""
