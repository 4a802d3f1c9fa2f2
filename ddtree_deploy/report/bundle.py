"""The evidence bundle: a run's record read into one JSON document of a published, versioned format.

`.ddtree-deploy/runs/RUN/` holds plan.json, journal.jsonl, summary.json and, where the facts were kept,
facts.json. A bundle is all of them brought into one shape: docs/schema/bundle-1.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_deploy.errors import InputError
from ddtree_deploy.onhost.wire.protocol import STATE_UNTOUCHED
from ddtree_deploy.report import journal
from ddtree_deploy.report.measurements import measurements
from ddtree_deploy.running.record import FOLDER
from ddtree_deploy.text import safe

FORMAT = 1
STAGE = "evidence"
_TARGET = ("ref", "path", "source", "sha256", "before")


@dataclass(frozen=True)
class RunFiles:
    """What was found in a run's folder. Missing ones are empty, and named in `warnings`."""

    plan: dict[str, Any]
    events: list[dict[str, Any]]
    summary: dict[str, Any]
    facts: dict[str, Any]
    warnings: list[str]


def runs_folder(hosts_file: Path) -> Path:
    """Where the runs of this hosts.yaml are recorded."""
    return hosts_file.resolve().parent / FOLDER / "runs"


def find(runs: Path, name: str) -> Path:
    """The folder of a run, by its id, an unambiguous beginning or end of it, or `last`. Raises InputError."""
    known = sorted(p.name for p in runs.iterdir() if p.is_dir()) if runs.is_dir() else []
    if not known:
        raise InputError(
            "no run was recorded here yet",
            file=runs,
            stage=STAGE,
            next_command="ddtree-deploy rollout TARGET",
        )
    if name == "last":
        return runs / known[-1]
    if name in known:
        return runs / name
    near = [k for k in known if name and (k.startswith(name) or k.endswith(name))]
    if len(near) == 1:
        return runs / near[0]
    problem = (
        f"{len(near)} runs match {name!r}: {', '.join(near[-3:])}" if near else f"there is no run {name!r}"
    )
    raise InputError(problem, file=runs, stage=STAGE, next_command="ddtree-deploy history")


def load(folder: Path) -> dict[str, Any]:
    """The bundle of a run's folder. Raises InputError, with file and line, when a file cannot be read."""
    return assemble(folder.name, read(folder))


def read(folder: Path) -> RunFiles:
    """The files of a run's folder, parsed."""
    paths = [folder / name for name in ("plan.json", "summary.json", "facts.json", "journal.jsonl")]
    warnings = [f"{path.name} is missing" for path in paths if not path.exists()]
    plan, summary, facts = (_json(path) if path.exists() else {} for path in paths[:3])
    events = _events(paths[3], warnings) if paths[3].exists() else []
    if not plan and not events:
        raise InputError("neither a plan nor a journal is here", file=folder, stage=STAGE)
    return RunFiles(plan, events, summary, facts, warnings)


def assemble(run: str, files: RunFiles) -> dict[str, Any]:
    """Bring the files into the bundle's shape. Pure."""
    plan, summary = files.plan, files.summary
    ended = journal.end(files.events)
    last: dict[str, Any] = ended or summary
    steps = journal.steps(files.events, plan.get("steps") or [])
    first = files.events[0] if files.events else {}
    warnings = list(files.warnings)
    if ended is None and files.events:
        warnings.append("the journal has no end: contact was lost, or the run goes on")
    exit_code = last.get("exit", last.get("exit_code"))
    return {
        "format": FORMAT,
        "run": run,
        "action": plan.get("action") or summary.get("action", ""),
        "host": plan.get("host") or summary.get("host", ""),
        "who": plan.get("who", ""),
        "created": plan.get("created", ""),
        "started": first.get("t"),
        "seconds": _seconds(files.events, summary),
        "down_s": last.get("down_s"),
        "verdict": last.get("verdict") or "unknown",
        "exit": exit_code if isinstance(exit_code, int) else None,
        "state": last.get("state") or (STATE_UNTOUCHED if not files.events else "unknown"),
        "step": last.get("step") or "",
        "reason": safe(last.get("reason") or ""),
        "next": last.get("next") or last.get("next_command") or "",
        "payload": {
            **{k: plan.get(f"payload_{k}", "") for k in ("name", "version")},
            "variant": plan.get("variant", ""),
            "digest": plan.get("payload_digest", ""),
            "release": plan.get("release", ""),
        },
        "traffic": {k: summary.get(k) for k in ("execs", "sent", "received")},
        "fingerprint": fingerprint(files.facts, plan),
        "targets": [{k: t.get(k, "") for k in _TARGET} for t in plan.get("targets") or []],
        "steps": steps,
        "measurements": measurements(steps),
        "warnings": warnings,
    }


def _seconds(events: list[dict[str, Any]], summary: dict[str, Any]) -> float | None:
    times = [float(e["t"]) for e in events if isinstance(e.get("t"), int | float)]
    if len(times) > 1:
        return round(times[-1] - times[0], 3)
    value = summary.get("seconds")
    return float(value) if isinstance(value, int | float) else None


def fingerprint(facts: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """What the host is, as flat as it goes: what `diff` compares between hosts and days."""
    service = facts.get("service") or {}
    planned = plan.get("service") or {}
    packages = facts.get("packages") or {}
    found = {
        **{k: facts.get(k) for k in ("hostname", "os", "kernel")},
        "python": facts.get("python") or plan.get("python"),
        "python_version": ".".join(map(str, facts.get("python_version") or [])) or None,
        "site": facts.get("site") or plan.get("site"),
        "gpus": [f"{g.get('name')} ({g.get('memory_total_mib')} MiB)" for g in facts.get("gpus") or []],
        **{k: facts.get(k) for k in ("driver", "cuda")},
        "packages": {name: p.get("version", "") for name, p in sorted(packages.items())},
        "pip_freeze": facts.get("pip_freeze") or [],
        "service": {
            "name": planned.get("name") or None,
            "kind": service.get("kind") or planned.get("kind") or None,
            **{k: planned.get(k) or None for k in ("unit", "endpoint")},
            "digest": service.get("digest") or None,
            **{k: _argv(service.get(k)) for k in ("command", "new_command")},
        },
    }
    return found if facts or plan else {}


def _argv(argv: Any) -> list[str]:
    return [safe(a) for a in argv] if isinstance(argv, list) else []


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", file=path, line=error.lineno, stage=STAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=path, stage=STAGE) from None
    if not isinstance(data, dict):
        raise InputError("expected a JSON object", file=path, line=1, stage=STAGE)
    if data.get("secrets"):  # the record masks them; a copy from the host may not
        data["secrets"] = dict.fromkeys(data["secrets"], "***")
    return data


def _events(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """The journal's events by number, each once: a reconnect may have brought some twice."""
    events: dict[int, dict[str, Any]] = {}
    try:
        rows = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise InputError(f"cannot be read: {error}", file=path, stage=STAGE) from None
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        try:
            event = json.loads(row)
        except json.JSONDecodeError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("n"), int):
            if number >= len(rows) - 1:
                warnings.append("the journal's last line is torn")
                continue
            raise InputError("not a journal event", file=path, line=number, stage=STAGE)
        events.setdefault(event["n"], event)
    return [events[n] for n in sorted(events)]
