"""Which release serves: as the process carries it, as its command line shows it, as the server says it.

What is wanted is in the form of installed.json. What cannot be told is `unknown`, never taken for right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..context import Context
from ..judge import told
from ..state import durable, releases
from ..venv import modules
from ..wire.masking import is_secret_name
from ..wire.protocol import Launch, Serves, from_dict, to_dict
from . import command_line, proc
from .base import RECORD, RELEASE, Record, ServiceControl, ServiceError
from .sglang_api import HttpError, server_info

ASK_S = 30.0


@dataclass
class Look:
    """What was seen, each in words for people, secrets masked."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def in_words(self) -> str:
        """What is right, and what nobody can tell."""
        untold = f"not told: {', '.join(self.unknown)}" if self.unknown else ""
        return "; ".join(filter(None, [", ".join(self.right), untold]))


def remember(ctx: Context, control: ServiceControl) -> None:
    """Keep how the service was started with the release that is live after this run, for `look`."""
    wanted = releases.to_be(ctx.plan, ctx.run_dir) or {}
    run_dir = ctx.run_dir.parent / str(wanted.get("release", ""))
    if wanted and run_dir.is_dir():
        _record(control).save(run_dir / releases.SERVING)


def relaunched(ctx: Context, control: ServiceControl, launch: Launch) -> None:
    """Keep with what the service was left by a run that installs nothing, for `commit`."""
    _record(control).save(ctx.run_dir / releases.SERVING)
    durable.write_json(ctx.run_dir / releases.APPLIED, to_dict(launch))


def _record(control: ServiceControl) -> Record:
    return Record(control.service.kind, True, True, control.definition(), control.running_argv())


def look(
    control: ServiceControl, site_dir: Path, wanted: Mapping[str, Any] | None, *, recorded: bool
) -> Look:
    """Does the running service show the release `wanted` (None: nothing of ours)? Asks the server, too.

    recorded: compare with the launch as it was when the release was started, which somebody may have edited.
    """
    seen = Look()
    with control.one_look():
        main = control.processes().main
    if not main:
        return seen
    _carried(control, main, wanted, seen)
    if wanted is not None:
        if recorded:
            _as_started(control, main, site_dir / "runs" / str(wanted["release"]) / releases.SERVING, seen)
        info = _info(control, seen)
        _flags(control, main, wanted, info, seen)
        _answers(control, wanted, info, seen)
    for room in (seen.right, seen.wrong, seen.unknown):
        room[:] = [control.mask(text) for text in room]
    return seen


def _carried(control: ServiceControl, main: int, wanted: Mapping[str, Any] | None, seen: Look) -> None:
    """The release in the environment of the main process, and of whoever listens for it."""
    due = None if wanted is None else wanted.get("carries")
    if wanted is not None and due is None:
        seen.unknown.append("the release of the process (an older version of this tool started it)")
        return
    for pid in [main, *sorted(proc.holders(control.endpoint.port) - {main})]:
        found = _release_of(pid)
        if found is None:
            seen.unknown.append(f"the release of process {pid} (its environment cannot be read)")
        elif found == (due or ""):
            if due and pid == main:
                seen.right.append(f"the process carries release {due}")
        elif found or (pid == main and not _clears_environment(control)):
            seen.wrong.append(
                f"process {pid} carries {f'release {found}' if found else 'no release'}, "
                f"it should carry {due or 'none'}"
            )
        elif pid == main:
            seen.unknown.append(f"the release of process {pid} (its command clears the environment)")


def _release_of(pid: int) -> str | None:
    """What a process carries, "" for nothing; None where its environment is overwritten or may not be read.

    A process that renames itself writes over its environment: what is left has no `=`.
    """
    entries = [entry for entry in proc.text(pid, "environ").split("\0") if entry]
    if not entries or any("=" not in entry for entry in entries):
        return None
    return next((e.partition("=")[2] for e in entries if e.startswith(RELEASE + "=")), "")


def _clears_environment(control: ServiceControl) -> bool:
    try:
        return Path(control.future_argv()[0]).name == "env"
    except (ServiceError, IndexError):
        return False


def _as_started(control: ServiceControl, main: int, folder: Path, seen: Look) -> None:
    """The launch, and the command line that came of it, are those that the release was started with."""
    if not (folder / RECORD).exists():
        seen.unknown.append("whether the launch was edited since (there is no record of it)")
        return
    try:
        edited = control.launch_restored(folder)
        before = Record.load(folder).argv
    except ServiceError as e:
        seen.unknown.append(str(e))
        return
    if edited:
        seen.wrong.append(f"the launch was edited: {edited}")
    now = proc.argv(main)
    if before and now and now != before:
        was, is_now = _parts(control.masked(before), control.masked(now))
        seen.wrong.append(
            f"process {main} runs another command line: {was or 'nothing'} is {is_now or 'gone'}"
        )


def _parts(old: list[str], new: list[str]) -> tuple[str, str]:
    """What is between the beginning and the end that two command lines share."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return " ".join(old[start : len(old) - end]), " ".join(new[start : len(new) - end])


def _info(control: ServiceControl, seen: Look) -> dict[str, Any]:
    """What /server_info says; empty where the server has no such page, or does not show it to us."""
    try:
        return server_info(control.endpoint, seconds=ASK_S)
    except HttpError as e:
        (seen.unknown if e.kind in ("status", "protocol") else seen.wrong).append(str(e))
        return {}


def _flags(
    control: ServiceControl, main: int, wanted: Mapping[str, Any], info: Mapping[str, Any], seen: Look
) -> None:
    """The server has the values of `launch.set`; where it does not tell, its command line has them."""
    launch: Launch = from_dict(Launch, wanted.get("launch") or {})
    argv = proc.argv(main)
    confirmed = 0
    for name, value in launch.set.items():
        verdict, says = (told.UNKNOWN, "") if is_secret_name(name) else told.flag(info, name, value)
        if verdict == told.UNKNOWN:
            _on_command_line(argv, name, value, seen)
        elif verdict == told.OTHER:
            asked = "is to be set" if value is None else f"is to be {value}"
            seen.wrong.append(f"the server says {name} {says}, it {asked}")
        else:
            confirmed += 1
    for name in launch.unset:
        word = told.spelt(argv, name, info)
        if word:
            seen.wrong.append(f"its command line has {word.partition('=')[0]}, and {name} is to be unset")
    if confirmed:
        seen.right.append(f"the server confirms {confirmed} of {len(launch.set)} flags")


def _on_command_line(argv: list[str], name: str, value: str | None, seen: Look) -> None:
    found = command_line.values_of(argv, name)
    if argv and found != ([] if value is None else [value]):
        said = f"no {name}" if found is None else f"another {name}"
        seen.wrong.append(f"its command line has {said}, and the server does not tell")
    else:
        seen.unknown.append(f"{name} (only the command line has it)" if argv else name)


def _answers(control: ServiceControl, wanted: Mapping[str, Any], info: Mapping[str, Any], seen: Look) -> None:
    """The server says of its code what the payload said that it would."""
    if not wanted.get("serves"):
        return
    serves: Serves = from_dict(Serves, wanted["serves"])
    if serves.metric:
        where = f"{serves.label} of {serves.metric} in /metrics"
        try:
            text = control.endpoint.call("GET", "/metrics", seconds=ASK_S).decode(errors="replace")
        except HttpError as e:
            (seen.unknown if e.kind == "status" else seen.wrong).append(f"{where} ({e})")
            return
        answers: list[Any] = told.labels(text, serves.metric, serves.label)
    else:
        where = f"{serves.server_info} of /server_info"
        if not info:
            seen.unknown.append(where)
            return
        answers = told.everywhere(info, serves.server_info)
    if not answers:
        seen.wrong.append(f"the server does not tell {where}: the payload is not loaded")
    elif serves.equals == "version":
        others = sorted({str(answer) for answer in answers} - {str(wanted["version"])})
        if others:
            seen.wrong.append(f"{where} is {', '.join(others)}, it is to be {wanted['version']}")
        else:
            seen.right.append(f"it says version {wanted['version']}")
    else:
        _modules(wanted["files"], answers, where, seen)


def _modules(files: Mapping[str, Any], answers: list[Any], where: str, seen: Look) -> None:
    said: set[str] = set()
    wrong: set[str] = set()
    for answer in answers:
        if not isinstance(answer, dict) or not answer:
            seen.wrong.append(f"{where} is not what this payload says: it names no module")
            return
        said |= set(answer)
        wrong |= set(modules.others(files, answer))
    if wrong:
        seen.wrong.append(f"other code is loaded than was installed: {', '.join(sorted(wrong))}")
    else:
        seen.right.append(f"the code of {len(said)} modules is what was installed")
