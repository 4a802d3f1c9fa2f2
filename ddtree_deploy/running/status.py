"""What a host is: release, live files, service, lock. Pure: facts in, words out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.planning.drift_report import counted, live_files, service_lines
from ddtree_deploy.planning.known import Known
from ddtree_deploy.text import safe


def describe(known: Known, payload: Payload | None) -> dict[str, Any]:
    """JSON-ready: release, files with their state (base | ours | foreign), service, lock, orphan, ..."""
    facts, release = known.facts, known.release(known.live)
    return {
        "address": known.host.address,
        "hostname": facts.hostname,
        "python": facts.python,
        "packages": {name: p.version for name, p in sorted(facts.packages.items())},
        "release": asdict(release) if release else None,
        "live": known.live,
        "files": files_of(known, payload),
        "service": asdict(facts.service) if facts.service else None,
        "lock": asdict(facts.lock),
        "orphan": asdict(facts.orphan) if facts.orphan else None,
        "gpus": [asdict(gpu) for gpu in facts.gpus],
        "warnings": list(facts.warnings),
        "releases": [asdict(r) for r in facts.releases],
    }


def files_of(known: Known, payload: Payload | None) -> list[dict[str, str]]:
    """Every path that the installed release or the payload's fitting variant is about, with what is there."""
    return [
        {key: getattr(live, key) for key in ("ref", "path", "state", "expected", "found")}
        for live, _ in live_files(known, payload)
    ]


def lines_of(name: str, data: dict[str, Any]) -> list[str]:
    """The same for people."""
    packages = data["packages"]
    lines = [f"{name}  ({data['hostname']}, SGLang {packages.get('sglang', 'none')})"]
    release = data["release"]
    if release:
        lines.append(
            f"  release  {data['live']}: {release['payload']} {release['version']}, variant "
            f"{release['variant']}, {release['verdict']}, by {release['who']}"
        )
    else:
        lines.append(f"  release  {data['live'] or 'none of ours'}")
    foreign = [f for f in data["files"] if f["state"] == "foreign"]
    counts = counted([f["state"] for f in data["files"]])
    lines.append(f"  files    {counts or 'none looked at'}{'  <- drift' if foreign else ''}")
    lines += [f"           {f['ref']}: expected {f['expected']}, found {f['found']}" for f in foreign]
    if foreign:
        lines.append(f"           the differences: ddtree-deploy drift {name}")
    service = data["service"]
    if service is None:
        lines.append("  service  none configured")
    else:
        heard = "listening" if service["listening"] else "not listening"
        pid = f", pid {service['pid']}" if service["pid"] else ""
        lines.append(f"  service  {service['kind']}: {service['state']}{pid}, {heard}")
        if service["problem"]:
            lines.append(f"           {service['problem']}")
        lines += service_lines(*(service[key] for key in ("differs", "not_live", "untold")))
    lock, orphan = data["lock"], data["orphan"]
    if lock["held"]:
        lines.append(
            f"  lock     held by run {lock['run']} of {lock['who']} since {lock['since']}, "
            f"step {lock['step'] or '?'}"
            + (f"; its state is in {lock['state_dir'] or 'another place'}" if lock["elsewhere"] else "")
        )
    else:
        lines.append("  lock     free")
    if orphan:
        lines.append(
            f"  orphan   run {orphan['run']} of {orphan['who']} ended without a verdict at step "
            f"{orphan['step']}; next: ddtree-deploy recover {name}"
        )
    lines += [f"  warning  {warning}" for warning in data["warnings"]]
    return [safe(line) for line in lines]
