"""The runs that were recorded here, one row each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ddtree_deploy.errors import InputError
from ddtree_deploy.report import bundle


@dataclass(frozen=True)
class Row:
    """One run. `verdict` is `unknown` where contact was lost, `unreadable` where the record is damaged."""

    run: str
    created: str
    host: str
    action: str
    payload: str
    verdict: str
    exit: int | None
    step: str  # where it ended, if not by a pass
    state: str
    who: str
    seconds: float | None


def rows(runs: Path, host: str = "") -> list[Row]:
    """All runs, oldest first (a run's id begins with its time). host: only this host's."""
    if not runs.is_dir():
        return []
    found = [_row(folder) for folder in sorted(runs.iterdir()) if folder.is_dir()]
    return [row for row in found if not host or row.host == host]


def _row(folder: Path) -> Row:
    try:
        b = bundle.load(folder)
    except InputError as error:
        return Row(folder.name, "", "", "", "", "unreadable", None, "", error.message, "", None)
    payload = b["payload"]
    name = " ".join(part for part in (payload["name"], payload["version"]) if part)
    name += f" ({payload['variant']})" if payload["variant"] else ""
    return Row(**{f.name: b[f.name] for f in fields(Row)} | {"payload": name})
