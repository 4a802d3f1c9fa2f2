"""Which code the service imports: its own Python is asked, run as the service runs it.

As its next start will run it, and, while it runs, as its process was started. The answer is held against what
the plan's Python says of itself. Where it cannot be known it is called unknown, with the reason.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..context import Context, StepFailed
from ..programs import process, site_probe
from ..programs.site_probe import ProbeError, Site
from . import proc, python_call
from .base import ServiceControl, ServiceError
from .python_call import PythonCall, Unknown


@dataclass(frozen=True)
class Imports:
    """For people, "" where there is nothing to say.

    other: how the service's code is another than the plan's. unknown: why that cannot be told.
    """

    other: str = ""
    unknown: str = ""


class _Other(Exception):
    """It is other code, and no answer is needed to know it."""


@dataclass(frozen=True)
class _Way:
    """How the service's Python is run, by whom (a uid)."""

    call: PythonCall
    uid: int

    @property
    def question(self) -> list[object]:
        """Equal questions have equal answers: of the environment, what decides on them."""
        names = {n for n in self.call.env if n.startswith(("PYTHON", "LD_"))} | {"VIRTUAL_ENV", "HOME"}
        env = {"HOME": _home(self.uid), **self.call.env}
        call = self.call
        return [call.command, call.first, call.folder, self.uid, {n: env.get(n) for n in names}]


def look(
    control: ServiceControl, planned: Site, package: str, modules: Iterable[str], *, next_start: bool
) -> Imports:
    """What the service imports, now and (with `next_start`) after the edits of its launch.

    planned: what the plan's Python says. modules: top-level names that the plan installs.
    """
    names = set(modules)
    asked: list[tuple[str, _Way]] = []
    other, unknown = list[str](), list[str]()

    def note(who: str, error: Exception) -> None:
        (other if isinstance(error, _Other) else unknown).append(f"{who}: {error}")

    main, server = _processes(control)
    running = server or main
    if running:
        who = f"process {running}"
        try:
            asked.append((who, _running(running, planned)))
        except (Unknown, _Other) as error:
            note(who, error)
    # The command line of a wrapper tells nothing of the server that it starts; a running server does.
    wrapped = bool(server and server != main and asked and control.service.launch.command is None)
    if next_start and not wrapped:
        who = f"the next start of {control.service.name}"
        try:
            way = _future(control, planned)
            same = [w for w, one in asked if one.question == way.question]
            asked = [(f"{w} and {who}" if w in same else w, one) for w, one in asked]
            if not same:
                asked.append((who, way))
        except (Unknown, _Other, ServiceError) as error:
            note(who, error)
    for who, way in asked:
        try:
            different = _different(planned, _ask(way, package, names), names)
            if different:
                other.append(f"{who}: {different}")
        except ProbeError as error:
            denied = isinstance(error.__cause__, PermissionError)
            note(who, (Unknown if denied else _Other)(f"its Python does not answer: {error}"))
    return Imports(
        f"the service imports other code than planned: {'; '.join(other)}" if other else "",
        f"which code the service imports is unknown: {'; '.join(unknown)}" if unknown else "",
    )


def planned(ctx: Context) -> Site:
    """What the plan's Python says now. Raises ProbeError."""
    package = os.path.basename(ctx.plan.package_dir) or "sglang"
    return site_probe.ask(ctx.plan.python, package, site_probe.tops(t.ref for t in ctx.plan.targets))


def check(ctx: Context, control: ServiceControl, planned: Site, *, next_start: bool) -> str:
    """What is not known, for people. Raises StepFailed for other code, before the change with exit code 6.

    The way back is never barred: a rollback only tells of it.
    """
    plan = ctx.plan
    package = os.path.basename(plan.package_dir) or "sglang"
    found = look(
        control, planned, package, site_probe.tops(t.ref for t in plan.targets), next_start=next_start
    )
    if found.other and plan.action != "rollback":
        raise StepFailed(control.mask(found.other), exit_code=6 if next_start else 0)
    return control.mask("; ".join(filter(None, [found.other, found.unknown])))


def _processes(control: ServiceControl) -> tuple[int, int]:
    """The service's main process, and that of its processes which was started to serve the endpoint."""
    seen = control.processes()
    server = proc.server_of(control.endpoint.port)
    members = {pid for pid, _ in seen.members}
    return seen.main, server.pid if server is not None and server.pid in members else 0


def _running(pid: int, planned: Site) -> _Way:
    argv, folder, uid = proc.argv(pid), proc.cwd(pid), proc.uid(pid)
    if not argv or not folder or uid < 0:
        raise Unknown("its command line or its folder cannot be read")
    # What marks processes of ours is not for the one that we ask.
    env = {name: value for name, value in proc.environ(pid).items() if not name.startswith("DDTREE_")}
    call = python_call.read(argv, env, folder)
    for path in _places(planned):
        try:
            theirs: os.stat_result | None = os.stat(f"/proc/{pid}/root{path}")
        except PermissionError:
            raise Unknown(f"its view of {path} cannot be read") from None
        except OSError:
            theirs = None
        if theirs is None or not os.path.samestat(theirs, os.stat(path)):
            raise _Other(f"{path} is not the host's (its root folder or a mount of its own is in between)")
    return _Way(call, uid)


def _future(control: ServiceControl, planned: Site) -> _Way:
    # systemd looks for a command without a slash here, whatever PATH= the unit sets.
    search = process.PATH if control.service.kind == "systemd" else ""
    call = python_call.read(control.future_argv(), control.environment(), control.working_folder(), search)
    owner = control.owner()
    try:
        uid = process.account(owner).pw_uid if owner else os.geteuid()
    except KeyError:
        raise Unknown(f"there is no user {owner!r} on this host") from None
    mounts = control.mounts()
    for path in [*_places(planned), call.command[0]]:
        if how := _hidden(path, mounts):
            raise _Other(f"{path} is not the host's ({how})")
    return _Way(call, uid)


def _hidden(path: str, mounts: dict[str, str]) -> str:
    """By what the service sees something else at a path, or in it; the innermost mount over it decides."""
    inside = [how for place, how in mounts.items() if place.startswith(f"{path}/") and how]
    over = [place for place in mounts if f"{path}/".startswith(place.rstrip("/") + "/")]
    return inside[0] if inside else mounts[max(over, key=len)] if over else ""


def _places(planned: Site) -> list[str]:
    """Folders that have to be the same to the service."""
    packages = [p.folder for p in planned.packages.values() if p.folder]
    return sorted({p for p in [planned.purelib, *packages] if os.path.exists(p)})


def _ask(way: _Way, package: str, names: set[str]) -> Site:
    call = way.call
    try:
        person = _as(way.uid, call.command[0])
    except OSError as error:
        raise ProbeError(str(error)) from error
    return site_probe.ask_as(
        call.command, package, names, first=call.first, env=call.env, cwd=call.folder, **person
    )


def _as(uid: int, python: str) -> dict[str, Any]:
    """Arguments for subprocess: be the service's user; as root, never root in somebody else's venv."""
    if os.geteuid():
        return {}
    if uid == 0:
        return site_probe.owner_of(python)
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return {"user": uid, "group": uid, "extra_groups": []}
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    return {"user": uid, "group": user.pw_gid, "extra_groups": groups}


def _home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""


def _different(planned: Site, found: Site, names: set[str]) -> str:
    """What of the answer is another than planned, both side by side; "" for nothing."""
    pairs = {
        "Python": (".".join(map(str, planned.python_version)), ".".join(map(str, found.python_version))),
        "site-packages": (planned.purelib, found.purelib),
        "its prefix": (planned.prefix, found.prefix),
        "its standard library": (planned.stdlib, found.stdlib),
        "its bytecode": (planned.cache or "beside the sources", found.cache or "beside the sources"),
    }
    for name, place in sorted(planned.modules.items()):
        if place or name in names:
            pairs[name] = (place or "nothing", found.modules.get(name) or "nothing")
    for name, there in sorted(planned.packages.items()):
        now = found.packages.get(name)
        pairs[f"version of {name}"] = (there.version, now.version if now else "none")
    return ", ".join(
        f"{what} is {now}, planned for {was}" for what, (was, now) in pairs.items() if now != was
    )
