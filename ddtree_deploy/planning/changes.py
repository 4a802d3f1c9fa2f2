"""What a plan would change, for people: files with their diffs, launch command, steps. Pure."""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ddtree_deploy.inputs.yaml.values import format_duration
from ddtree_deploy.onhost.wire.facts import unpacked
from ddtree_deploy.onhost.wire.protocol import FileState
from ddtree_deploy.text import safe, size

_MAX_DIFF_LINES = 400


@dataclass(frozen=True)
class FileChange:
    ref: str
    path: str
    change: str  # new | replaced | patched | removed | restored | unchanged
    live: str  # base | absent | ours, RELEASE | foreign, what was found
    diff: str = ""  # unified; "" where a side is not at hand


@dataclass(frozen=True)
class StepLine:
    name: str
    timeout_s: float
    options: dict[str, Any]
    skipped: str = ""  # why it will not run on this host
    on_controller: bool = False


@dataclass(frozen=True)
class ChangeSet:
    host: str
    action: str  # rollout | rollback
    payload: str
    sglang: str
    python: str
    live_release: str  # "" = none of ours
    back_to: str  # rollback: the release that is returned to
    files: tuple[FileChange, ...]
    service: str
    command: tuple[str, ...]
    new_command: tuple[str, ...]
    steps: tuple[StepLine, ...]
    warnings: tuple[str, ...] = ()
    launch_changed: bool = False  # `launch:` is not what the live release was started with (its env, say)
    digest: str = ""  # of a rollout: over all that it was planned from (see `digest`)
    dependents: tuple[str, ...] = ()  # units that go down with the service, and are started again

    @property
    def empty(self) -> bool:
        """What is wanted is live already: files and launch command."""
        same_launch = self.command == self.new_command and not self.launch_changed
        return same_launch and all(f.change == "unchanged" for f in self.files)


def content_of(file: FileState) -> bytes | None:
    """The content that the host sent along; None if it did not, or it is damaged."""
    if file.content_b64 is None:
        return None
    try:
        return unpacked(file.content_b64)
    except ValueError:
        return None


def diff(name: str, old: bytes, new: bytes, sides: tuple[str, str] = ("live", "payload")) -> str:
    """Unified diff of two contents; one line for binary ones."""
    try:
        before, after = old.decode().splitlines(), new.decode().splitlines()
    except UnicodeDecodeError:
        return f"binary content, {len(old)} bytes before, {len(new)} after\n"
    lines = difflib.unified_diff(before, after, f"{sides[0]} {name}", f"{sides[1]} {name}", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def render(changes: ChangeSet, *, diffs: bool = True, unchanged: bool = False) -> str:
    """Plain text, ending with a line break.

    diffs: print the differences of files that are replaced (new ones get their number of lines only).
    """
    out = [f"{changes.action} on {changes.host}"]
    if changes.payload:
        out.append(f"  payload   {changes.payload}")
    out.append(f"  host      SGLang {changes.sglang}, {changes.python}")
    out.append(f"  live      {changes.live_release or 'none of ours'}")
    if changes.back_to:
        out.append(f"  back to   {changes.back_to}")
    out += _files(changes, diffs, unchanged)
    out += _launch(changes)
    if changes.dependents:
        out.append(f"  with  {', '.join(changes.dependents)} (stopped with the service, and started again)")
    out += ["", "steps"]
    out += [_step(step) for step in changes.steps]
    longest = sum(step.timeout_s for step in changes.steps if not step.skipped)
    out += [f"  {'in all':<10} at most {format_duration(longest)}; the undo has its own limit, 1h a step"]
    if changes.warnings:
        out += ["", "warnings", *(f"  {warning}" for warning in changes.warnings)]
    if changes.empty and changes.action == "rollout":
        out += ["", "nothing to change: this release is live"]
    return "".join(f"{safe(line)}\n" for line in out)


def _files(changes: ChangeSet, diffs: bool, unchanged: bool) -> list[str]:
    counts = Counter(f.change for f in changes.files)
    listed = ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "none"
    out = ["", f"files: {listed}"]
    shown = [f for f in changes.files if unchanged or f.change != "unchanged"]
    width = max((len(f.ref) for f in shown), default=0)
    for file in shown:
        lines = file.diff.splitlines()
        extra = (
            f"  {sum(line.startswith('+') for line in lines[2:])} lines"
            if file.change == "new" and lines
            else ""
        )
        out.append(f"  {file.change:<9} {file.ref:<{width}}  ({file.live}){extra}")
        if diffs and file.diff and file.change not in ("new", "removed"):
            out += [f"    {line}" for line in lines[:_MAX_DIFF_LINES]]
            if len(lines) > _MAX_DIFF_LINES:
                out.append(f"    ... {len(lines) - _MAX_DIFF_LINES} more lines")
    return out


def _launch(changes: ChangeSet) -> list[str]:
    if not changes.service:
        return ["", "service: none, only files are changed"]
    out = ["", f"service: {changes.service}"]
    if changes.action == "rollback":
        return [
            *out,
            f"  now   {shlex.join(changes.command)}",
            "  then  as before the rollout that is undone",
        ]
    if changes.command == changes.new_command:
        changed = ["  new settings of `launch:` beside the command"] if changes.launch_changed else []
        return [*out, f"  same  {shlex.join(changes.command)}", *changed]
    return [*out, f"  old   {shlex.join(changes.command)}", f"  new   {shlex.join(changes.new_command)}"]


def _step(step: StepLine) -> str:
    options = ", ".join(_option(key, value) for key, value in step.options.items() if value not in (None, ""))
    place = "here, " if step.on_controller else ""
    note = f"  (skipped: {step.skipped})" if step.skipped else ""
    line = f"  {step.name:<10} {place}at most {format_duration(step.timeout_s)}"
    return line + (f"; {options}" if options else "") + note


def _option(key: str, value: Any) -> str:
    """As the playbook has it: without the units that the wire needs."""
    if key.endswith("_s"):
        return f"{key[:-2]}={format_duration(value)}"
    if key.endswith("_bytes"):
        return f"{key[:-6]}={size(value)}"
    return f"{key}={_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        if value and all(isinstance(v, dict) and "name" in v for v in value):
            return "[" + ", ".join(str(v["name"]) for v in value) + "]"
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return str(value)
