"""A run's journal -> its steps, in order, with verdicts, figures, commands and undos. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddtree_deploy.text import safe

TAIL_LINES = 40
PROGRESS_LINES = 5


def steps(events: Sequence[dict[str, Any]], planned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every planned step, also those that never ran (verdict `not run`), then steps the plan does not name.

    Each: {name, kind, verdict, reason, started, seconds, figures, commands, undo, log}. `started` is the
    host's clock in seconds since the epoch, `figures` the step's result data as it was journalled.
    """
    found = {str(p["name"]): _blank(str(p["name"]), str(p.get("kind", ""))) for p in planned}
    for event in events:
        name = event.get("step")
        if not name or event.get("e") == "end":
            continue
        step = found.setdefault(str(name), _blank(str(name), ""))
        _take(step, event)
    for step in found.values():
        if step["started"] is not None and step["verdict"] == "not run":
            step["verdict"] = "unfinished"
    return list(found.values())


def end(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The run's last word: the newest `end` event; None while there is none."""
    return next((e for e in reversed(events) if e.get("e") == "end"), None)


def _blank(name: str, kind: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind or name,
        "verdict": "not run",
        "reason": "",
        "started": None,
        "seconds": None,
        "figures": None,
        "commands": [],
        "undo": None,
        "log": [],
    }


def _take(step: dict[str, Any], event: dict[str, Any]) -> None:
    kind = event.get("e")
    if kind == "start":
        step["kind"] = event.get("kind", step["kind"])
        step["started"] = event.get("t")
    elif kind == "verdict":
        step["verdict"] = event.get("verdict", "")
        step["reason"] = safe(event.get("reason", ""))
        step["seconds"] = event.get("seconds")
    elif kind == "result":
        step["figures"] = event.get("data")
    elif kind == "output":
        step["commands"].append(
            {
                "command": safe(_command(event.get("argv", ""))),
                "rc": event.get("rc"),
                "seconds": event.get("seconds"),
                "tail": lines(str(event.get("tail", "")))[-TAIL_LINES:],
            }
        )
    elif kind == "progress":
        step["log"] = [*step["log"], safe(event.get("text", ""))][-PROGRESS_LINES:]
    elif kind == "undo":
        step["undo"] = {key: safe(event.get(key, "")) for key in ("phase", "what", "reason")}


def _command(argv: Any) -> str:
    return " ".join(map(str, argv)) if isinstance(argv, list) else str(argv)


def lines(text: str) -> list[str]:
    """Output for people: progress bars in their last state, control characters as escapes."""
    return [safe(line.rstrip("\r").rsplit("\r", 1)[-1]) for line in text.split("\n") if line.strip()]
