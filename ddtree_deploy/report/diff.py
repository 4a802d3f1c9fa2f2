"""What differs between two runs: two hosts, or two days. Pure: two bundles -> differences, in groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ddtree_deploy.report.measurements import by_name

_ABSENT = "-"
# Below this relative difference a measured figure is not worth a line.
_SAME = 0.005


@dataclass(frozen=True)
class Difference:
    """One field that is not the same. change: relative, for numbers (0.1 = the second is 10 % higher)."""

    section: str
    field: str
    first: str
    second: str
    change: float | None = None


def compare(one: dict[str, Any], two: dict[str, Any]) -> list[Difference]:
    """Differences in the order of _SECTIONS; run, time, and speed within 0.5 % do not count."""
    found: list[Difference] = []
    for section, fields in _SECTIONS.items():
        a, b = dict(fields(one)), dict(fields(two))
        for field in [*a, *(f for f in b if f not in a)]:
            first, second = a.get(field), b.get(field)
            change = _change(first, second) if section == "figures" else None
            if shown(first) == shown(second) or (change is not None and abs(change) < _SAME):
                continue
            found.append(Difference(section, field, shown(first), shown(second), change))
    return found


Fields = Iterator[tuple[str, Any]]


def _outcome(b: dict[str, Any]) -> Fields:
    for name in ("host", "action", "verdict", "exit", "state", "step", "reason"):
        yield name, b[name]


def _host(b: dict[str, Any]) -> Fields:
    host = b["fingerprint"]
    for name in ("hostname", "os", "kernel", "python", "python_version", "site", "driver", "cuda"):
        yield name, host.get(name)
    for i, gpu in enumerate(host.get("gpus") or []):
        yield f"GPU {i}", gpu


def _packages(b: dict[str, Any]) -> Fields:
    known = b["fingerprint"].get("packages") or {}
    yield from known.items()
    for line in b["fingerprint"].get("pip_freeze") or []:
        name, separator, version = line.partition("==")
        if name not in known:
            yield name, version if separator else line


def _service(b: dict[str, Any]) -> Fields:
    service = b["fingerprint"].get("service") or {}
    for name in ("name", "kind", "unit", "endpoint", "digest"):
        yield name, service.get(name)
    yield from _flags(service.get("new_command") or service.get("command") or [])


def _files(b: dict[str, Any]) -> Fields:
    for target in b["targets"]:
        yield target["ref"] or target["path"], target["sha256"][:12] or target["source"]


def _gates(b: dict[str, Any]) -> Fields:
    for step in b["steps"]:
        verdict = step["verdict"]
        yield step["name"], verdict if verdict == "pass" else f"{verdict}: {step['reason']}".rstrip(": ")


def _flags(argv: list[str]) -> Iterator[tuple[str, str]]:
    """`--flag value`, `--flag=value`, bare flags: a changed value is one line, not a whole command."""
    name = ""
    for position, word in enumerate(argv):
        if word.startswith("--"):
            if name:
                yield name, "set"
            name, separator, value = word.partition("=")
            if separator:
                yield name, value
                name = ""
        elif name:
            yield name, word
            name = ""
        else:
            yield f"argument {position}", word
    if name:
        yield name, "set"


def _figures(b: dict[str, Any]) -> Fields:
    measured = b["measurements"]
    for when in ("before", "after"):
        for name, value in by_name(measured.get(when)).items():
            yield f"{name} {when}", value
    speed = measured.get("speed") or {}
    yield "speed ratio", speed.get("ratio")
    yield "speed half-width", speed.get("half_width")
    restart = speed.get("restart") or {}
    yield "restart spread", restart.get("sd")


_SECTIONS = {
    "outcome": _outcome,
    "payload": lambda b: iter(b["payload"].items()),
    "host": _host,
    "packages": _packages,
    "service": _service,
    "files": _files,
    "gates": _gates,
    "figures": _figures,
}


def _change(first: Any, second: Any) -> float | None:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (first, second))
    return second / first - 1 if numbers and first else None


def shown(value: Any) -> str:
    """A value in a table: a number by its first four digits, `-` for nothing."""
    if value in (None, ""):
        return _ABSENT
    return f"{value:.4g}" if isinstance(value, float) else str(value)
