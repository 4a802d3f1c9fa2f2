"""What a stop of a unit takes down, and what would start it again by itself: asked of systemd, beforehand.

systemd has no dry run, and `list-dependencies --reverse` leaves PartOf= out. So the edges are followed as a
stop follows them: through units that are up. systemd 257 spares some of what StopPropagatedFrom= reaches over
other units; they are in here all the same, and starting what runs does nothing.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from ...programs import systemctl
from ...programs.systemctl import SystemctlError

# Requires=, Requisite=, BindsTo=, PartOf= of the other unit, PropagatesStopTo= (249) of this one.
_GO_DOWN = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
# Sockets, timers and paths; and Upholds= (249) of the other one, which starts this one at once.
_START_IT = ("TriggeredBy", "UpheldBy")
_CONFLICTS = ("Conflicts", "ConflictedBy")
EDGES = [*_GO_DOWN, *_START_IT, *_CONFLICTS]
ASKED = ["Id", "ActiveState", "LoadState", "Transient", "CanStart", "CanStop", *EDGES]
UP = ("active", "reloading", "refreshing", "activating")
# To start a target, say, starts all that it wants, also what somebody has stopped.
_CAN_BE_STOPPED = (".service", ".socket", ".timer", ".path")
_STOPPED, _STARTER, _CONFLICTING = "stopped", "starter", "conflicting"


@dataclass
class Closure:
    """Unit -> ActiveState, nearest first, of what is up.

    `stopped`: goes down with the unit. `starters`: of these, what would start it, or one of them, again; in
    the order in which to stop them before. `conflicting`: goes down when the unit, which is down, is started.
    """

    stopped: dict[str, str] = field(default_factory=dict)
    starters: list[str] = field(default_factory=list)
    conflicting: dict[str, str] = field(default_factory=dict)
    refused: str = ""  # why the unit cannot be stopped safely


def of(unit: str, shown: dict[str, str]) -> Closure:
    """Of a unit whose properties `EDGES`, Id and ActiveState are `shown`. Raises SystemctlError."""
    found = Closure()
    roles = {shown.get("Id") or unit: _STOPPED}
    todo = _edges(shown, _GO_DOWN, _STOPPED) | _edges(shown, _START_IT, _STARTER)
    if not _passes(shown):
        todo |= _edges(shown, _CONFLICTS, _CONFLICTING)
    while todo := {name: role for name, role in todo.items() if name not in roles}:
        roles |= todo
        names = list(todo)
        todo = {}
        for name, one in zip(names, systemctl.show_each(names, ASKED), strict=True):
            if one.get("Id") != name:  # then it was asked for by no name of its own
                raise SystemctlError(f"systemctl show {name}: it tells of {one.get('Id')}")
            _enter(found, unit, name, roles[name], one)
            todo |= _further(one, roles[name])
    return found


def units(text: str) -> list[str]:
    """A list of units as systemctl shows it: a name with a backslash is quoted there, as for a shell."""
    return shlex.split(text)


def _edges(shown: dict[str, str], names: tuple[str, ...], role: str) -> dict[str, str]:
    """Unit -> role, of these lists."""
    return {name: role for edge in names for name in units(shown.get(edge, ""))}


def _passes(shown: dict[str, str]) -> bool:
    return shown.get("ActiveState") in (*UP, "deactivating")


def _further(shown: dict[str, str], role: str) -> dict[str, str]:
    up = _passes(shown)
    if role == _CONFLICTING:
        return _edges(shown, _GO_DOWN, role) if up else {}
    found = _edges(shown, _GO_DOWN, _STOPPED) if up else {}
    # A dependent that is down would, once started by something, start the unit that it needs.
    return found | (_edges(shown, _START_IT, _STARTER) if up or role == _STOPPED else {})


def _enter(found: Closure, unit: str, name: str, role: str, shown: dict[str, str]) -> None:
    state = shown.get("ActiveState", "")
    if state not in UP:
        return
    found.refused = found.refused or _never_again(unit, name, role, shown)
    if role == _CONFLICTING:
        found.conflicting[name] = state
        return
    found.stopped[name] = state
    if role == _STARTER:
        found.starters.insert(0, name)  # the farthest first: it may start a nearer one


def _never_again(unit: str, name: str, role: str, shown: dict[str, str]) -> str:
    """Why what goes down cannot come back, or must not go down; in words, "" where nothing is against it."""
    if role == _STARTER and not name.endswith(_CAN_BE_STOPPED):
        return (
            f"{name} upholds {unit}, or what a stop takes down with it (Upholds=): it would start it at "
            "once, and cannot be stopped itself without more that changes; take Upholds= out first"
        )
    why = ""
    if shown.get("Transient") == "yes":
        why = "systemd-run made it, and once stopped it is gone"
    elif shown.get("LoadState", "loaded") != "loaded":
        why = f"its unit file is {shown['LoadState']}"
    elif shown.get("CanStart") == "no":
        why = "it refuses to be started by hand (RefuseManualStart=)"
    elif role == _STARTER and shown.get("CanStop") == "no":
        why = "it starts the service by itself, and refuses to be stopped by hand (RefuseManualStop=)"
    return f"{name} goes down with {unit} and could not be brought back: {why}; stop it first" if why else ""
