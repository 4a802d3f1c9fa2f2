"""The first exec of a rollout: what the host is. Read-only: no file is made, no lock is kept."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..programs import site_probe, systemctl
from ..state import holder, layout, line, releases
from ..state.held import LOCK, is_held
from ..state.journal import read
from ..state.lock import read_owner
from ..venv.files import Files
from ..wire.facts import Facts, Kept, LockFacts, Release, ServiceFacts, pack, packed
from ..wire.protocol import FACTS_MARK, PROTOCOL, FactsRequest, ProtocolError, from_dict
from . import host_facts, site_facts

RELEASES = 20
OWNER_S = 2.0


def main(request: bytes) -> int:
    """Print `FACTS_MARK` and the facts in one line; or on stderr why not, with exit status 1."""
    try:
        asked: FactsRequest = from_dict(FactsRequest, json.loads(request))
        if asked.protocol != PROTOCOL:
            raise ProtocolError(f"protocol {asked.protocol}, this is {PROTOCOL}")
        facts = gather(asked)
    except (ProtocolError, site_probe.ProbeError, OSError, ValueError) as error:
        print(f"facts: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print("\n" + FACTS_MARK + pack(facts), flush=True)
    return 0


def gather(asked: FactsRequest) -> Facts:
    """Raises ProbeError when the interpreter cannot say where its packages are."""
    python = sys.executable
    modules = site_probe.tops(asked.refs)
    site = site_probe.ask(python, asked.package, modules)
    package = site.packages.get(asked.package)
    folder = package.folder if package else ""
    state = layout.state_dir(asked.state_dir)
    site_dir = layout.site_dir(state, site.purelib)
    for place in (site_dir, *site_dir.parents):
        if place.exists() and not place.is_dir():
            raise site_probe.ProbeError(f"state_dir: {place} on the host is not a folder")
    installed = releases.installed(site_dir)
    files = Files([p for p in (site.purelib, folder) if p], layout.site_key(site.purelib))
    live = str((installed or {}).get("release", ""))
    kept, base = ([Kept(*link[:3]) for link in links] for links in line.leading_back(site_dir))
    owned = {p for room in ("files", "changed") for p in (installed or {}).get(room, {})}
    owned |= {p for k in (*kept, *base) for p in k.paths}
    bases = sorted(p.name for p in (site_dir / releases.BASES).glob("[0-9a-f]*"))
    service = _service(asked, site_dir, site, modules)
    gpus, gpu_problem = host_facts.gpus()
    warnings = [f"the venv's Python complains at its start: {site.noise[:200]}"] if site.noise else []
    warnings += [gpu_problem] if gpu_problem else []
    account = pwd.getpwuid(os.geteuid())
    return Facts(
        protocol=PROTOCOL,
        hostname=socket.gethostname(),
        user=account.pw_name,
        uid=os.geteuid(),
        home=account.pw_dir,
        os=host_facts.os_name(),
        kernel=os.uname().release,
        boot_id=layout.boot_id(),
        python=python,
        python_version=site.python_version,
        site=site.purelib,
        site_key=layout.site_key(site.purelib),
        site_dir=str(site_dir),
        state_free_bytes=host_facts.free_bytes(state),
        site_free_bytes=host_facts.free_bytes(site.purelib),
        packages=site.packages,
        files={
            ref: site_facts.file_state(files, site_facts.path_of(ref, site.purelib, folder), asked.contents)
            for ref in asked.refs
        },
        installed=installed,
        installed_files={p: site_facts.file_state(files, p, asked.contents) for p in sorted(owned)},
        releases=_releases(site_dir, {live, *(k.previous for k in kept)}),
        lock=lock_facts(site_dir, layout.venv_folders({"site": site.purelib, "package_dir": folder})),
        orphan=orphan_facts(site_dir),
        gpus=gpus,
        processes=host_facts.users_of(site.purelib, python, service.pid if service else 0, asked.also_stop),
        service=service,
        systemd=systemctl.booted(),
        bases=bases,
        kept=kept,
        base=base,
        base_contents={
            digest: packed(data)
            for digest in (bases if asked.contents else [])
            if (data := releases.base(site_dir, digest)) is not None and len(data) <= site_facts.CONTENT_LIMIT
        },
        warnings=warnings,
        attempts=releases.attempts(site_dir),
        driver=host_facts.driver(),
        cuda=site_facts.cuda_of(site.packages["torch"].folder) if "torch" in site.packages else "",
        pip_freeze=site_facts.freeze(site.purelib),
    )


def _releases(site_dir: Path, named: set[str]) -> list[Release]:
    """The newest, and `named` ones however old they are, oldest first."""
    found = releases.lines(site_dir)
    new = len(found) - RELEASES
    return [_of(Release, entry) for n, entry in enumerate(found) if n >= new or entry["run"] in named]


def _service(
    asked: FactsRequest, site_dir: Path, site: site_probe.Site, modules: set[str]
) -> ServiceFacts | None:
    from ..context import StepFailed
    from ..service import imports, listener
    from ..service.base import ServiceError
    from ..service.kind import control

    if asked.service is None:
        return None
    try:
        driven = control(asked.service, site_dir, asked.secrets)
        facts = listener.described(driven)
        if asked.serving and not is_held(site_dir / LOCK):  # a run at work is about to change it
            from ..service import release

            seen = release.look(driven, site_dir, releases.installed(site_dir), recorded=True)
            facts = dataclasses.replace(facts, not_live=seen.wrong, untold=seen.unknown)
        if facts.problem:
            return facts
        found = imports.look(driven, site, asked.package, modules, next_start=True)
        unknown = [driven.mask(found.unknown)] if found.unknown else []
        other = driven.mask(found.other)
        return dataclasses.replace(facts, other_code=other, warnings=[*facts.warnings, *unknown])
    except (ServiceError, StepFailed) as error:
        return ServiceFacts(asked.service.kind, "absent", problem=str(error))


def _of(cls: Any, values: dict[str, Any]) -> Any:
    """The dataclass `cls` of those values that it has a field for."""
    names = {f.name for f in dataclasses.fields(cls)}
    return cls(**{k: v for k, v in values.items() if k in names})


def lock_facts(site_dir: Path, folders: Sequence[str] = ()) -> LockFacts:
    """Who holds the venv now. folders: its own, which others may hold who keep their state somewhere else."""
    owner: dict[str, Any] = {}
    end = time.monotonic() + OWNER_S
    while is_held(site_dir / LOCK):
        owner = read_owner(site_dir)
        if os.path.isdir(f"/proc/{owner.get('pid')}") or time.monotonic() >= end:
            break
        time.sleep(0.02)  # it has the lock, and is about to say who it is, or to let it go
    else:
        owner = next((found for found in map(holder.of_folder, folders) if found), {})
        if not owner:
            return LockFacts()
        # Else it has taken our lock since.
        owner["elsewhere"] = owner.get("state_dir") != str(site_dir.parent.parent)
    facts: LockFacts = _of(LockFacts, {**owner, "held": True})
    return facts


def orphan_facts(site_dir: Path) -> LockFacts | None:
    """The newest run that died, or whose undo failed, while nobody holds the lock."""
    if is_held(site_dir / LOCK):
        return None
    folder = site_dir / "runs"
    for run_dir in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []:
        if not releases.unfinished(run_dir):
            continue
        events, _ = read(run_dir / layout.JOURNAL)
        first = events[0] if events else {"t": run_dir.stat().st_mtime}
        starts = [e["step"] for e in events if e["e"] == "start"]
        return LockFacts(
            held=False,
            run=run_dir.name,
            who=str(first.get("who", "")),
            pid=int(first.get("pid", 0)),
            since=layout.time_text(float(first["t"])),
            step=starts[-1] if starts else "",
        )
    return None
