"""baselines/*.json: accept lengths that were measured elsewhere.

The format is described in baselines/README.md. JSON is read with the YAML reader (every JSON text is
YAML), which gives each refusal its line and finds duplicate keys.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.yaml import document
from ddtree_deploy.inputs.yaml.models import Model, fit
from ddtree_deploy.onhost.judge import expected

FORMAT = 1


class Entry(Model):
    """One figure. budget: draft nodes without the root, 0 = the chain; or `best_of`, never a gate."""

    dataset: str = Field(min_length=1)
    temperature: float = Field(default=0.0, ge=0)
    budget: int | None = Field(default=None, ge=0)
    best_of: list[int] = Field(default_factory=list)
    accept_length: float = Field(ge=1)
    steps_per_token: float | None = Field(default=None, gt=0, le=1)
    source: str = ""

    @model_validator(mode="after")
    def _one_budget(self) -> Entry:
        if (self.budget is None) == (not self.best_of):
            raise ValueError("give either budget or best_of")
        return self

    @property
    def arm(self) -> str:
        """`chain`, `budget 64`, or `best of 16, 32, 64`."""
        return expected.arm(self.budget, self.best_of)


class Baseline(Model):
    """One baseline file."""

    format: int
    model: str = Field(min_length=1)
    draft: str = Field(min_length=1)
    source: str = Field(min_length=1)
    note: str = ""
    entries: list[Entry] = Field(min_length=1)


def load(path: Path | str) -> Baseline:
    """Read and check one file. Raises InputError with file, line and field."""
    path = Path(path)
    document.read_json(path, "baseline file")
    parsed = document.load(path, "baseline file")
    found = parsed.data.get("format")
    if found != FORMAT:
        raise parsed.error(("format",), f"format {found!r} is not known here, {FORMAT} is")
    baseline = fit(parsed, Baseline)
    seen: dict[tuple[str, float, str], int] = {}
    for i, entry in enumerate(baseline.entries):
        key = (expected.key(entry.dataset), entry.temperature, entry.arm)
        if key in seen:
            text = f"same data set, temperature and budget as entries[{seen[key]}]"
            raise parsed.error(("entries", i), text)
        seen[key] = i
    return baseline


COLUMNS = ("dataset", "temperature", "budget", "accept_length", "steps_per_token", "source")
_TEXTS = ("dataset", "source")
_NEEDED = ("dataset", "budget", "accept_length")


def import_table(path: Path, *, model: str, draft: str, source: str, note: str = "") -> dict[str, Any]:
    """A baseline file's content from a CSV with a header, or from a JSON list of objects with the same keys.

    Raises InputError with the line of the first bad row. Write the result with `dump`.
    """
    path = Path(path)
    rows = _json_rows(path) if path.suffix.lower() == ".json" else _csv_rows(path)
    if not rows:
        raise InputError("the table has no rows", file=path)
    entries = [_entry(path, line, row) for line, row in rows]
    head = {"format": FORMAT, "model": model, "draft": draft, "source": source}
    return {**head, **({"note": note} if note else {}), "entries": entries}


def dump(data: dict[str, Any], path: Path) -> Baseline:
    """Write a baseline file, one entry a line, and read it back: what is on disk has passed the loader."""
    rows = ",\n".join("  " + json.dumps(e, ensure_ascii=False) for e in data["entries"])
    head = [
        f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}," for k, v in data.items() if k != "entries"
    ]
    text = "\n".join(["{", *head, ' "entries": [', rows, " ]", "}", ""])
    return document.write_checked(path, text, load)


def _csv_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    reader = csv.reader(document.read_text(path, "table").splitlines(), skipinitialspace=True)
    header: list[str] | None = None
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        for cells in reader:
            if not any(c.strip() for c in cells) or cells[0].lstrip().startswith("#"):
                continue
            if header is None:
                header = [c.strip() for c in cells]
                _check_columns(path, reader.line_num, header)
                continue
            if len(cells) != len(header):
                text = f"{len(cells)} cells, the header has {len(header)}"
                raise InputError(text, file=path, line=reader.line_num)
            filled = {k: v.strip() for k, v in zip(header, cells, strict=True) if v.strip()}
            rows.append((reader.line_num, filled))
    except csv.Error as error:
        raise InputError(f"not valid CSV: {error}", file=path, line=reader.line_num) from None
    return rows


def _json_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    text, data = document.read_json(path, "table")
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise InputError("expected a list of objects", file=path, line=1)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = [node.start_mark.line + 1 for node in root.value] if root is not None else []
    for line, row in zip(lines, data, strict=True):
        _check_columns(path, line, list(row))
    return list(zip(lines, data, strict=True))


def _check_columns(path: Path, line: int, names: list[str]) -> None:
    for name in names:
        if name not in COLUMNS:
            hint = document.suggest(name, COLUMNS)
            raise InputError(f"unknown column {name!r}{hint}", file=path, line=line)
    for name in _NEEDED:
        if name not in names:
            raise InputError(f"missing column {name!r}", file=path, line=line)


def _entry(path: Path, line: int, row: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for name in (n for n in COLUMNS if n in row or n in _NEEDED):
        if name not in row:
            raise InputError("nothing here", file=path, line=line, field=name)
        text = str(row[name])
        try:
            entry[name] = text if name in _TEXTS else int(text) if name == "budget" else float(text)
            good = name in _TEXTS or math.isfinite(entry[name])
        except (ValueError, OverflowError):
            good = False
        if not good:
            kind = "a whole number" if name == "budget" else "a number"
            raise InputError(f"expected {kind}, got {row[name]!r}", file=path, line=line, field=name)
    return entry
