"""The few systemctl calls that we need, each with a deadline, and ended with the step that needs it."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from ..context import StepFailed
from . import bounded

BOOTED = Path("/run/systemd/system")  # sd_booted(3)
ANSWER_S = 5.0
SHOW_S = 30.0
DO_S = 120.0
LOOK_S = 0.1
_UNITS_S = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0,
    "month": 2629800.0, "y": 31557600.0,
}  # fmt: skip
UNANSWERED = ("", "offline", "unknown")  # what `is-system-running` says when nobody does


class SystemctlError(StepFailed):
    """systemctl failed or is not there; the message is its own."""


def booted() -> bool:
    """Is PID 1 systemd?"""
    return BOOTED.is_dir()


def can_run() -> bool:
    """Whether `systemd-run` can start a transient unit of the system manager."""
    return os.geteuid() == 0 and booted() and shutil.which("systemd-run") is not None


def environment() -> dict[str, str]:
    """What systemd's own programs need: to be found, and to answer in English."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def transient(unit: str, argv: list[str], properties: list[str], options: list[str]) -> list[str]:
    """The call that has the system manager run `argv` as a transient unit."""
    given = [f"--property={p}" for p in properties]
    return ["systemd-run", f"--unit={unit}", *options, "--quiet", *given, "--", *argv]


def run(*args: str, seconds: float = DO_S) -> str:
    """stdout of `systemctl ARGS`. Raises SystemctlError."""
    try:
        done = bounded.call(["systemctl", "--no-pager", *args], seconds=seconds, env=environment())
    except (OSError, subprocess.TimeoutExpired) as e:
        raise SystemctlError(f"systemctl {args[0]}: {e}") from e
    if done.returncode:
        raise SystemctlError(
            f"systemctl {' '.join(args)}: {done.stderr.strip() or f'status {done.returncode}'}"
        )
    return done.stdout


def stopping() -> bool:
    """Whether the system is going down: jobs that would start something are refused from then on.

    Nobody answers while PID 1 executes itself anew, which passes, and once it has become the program that
    ends all processes, this one too: so an answer is waited for.
    """
    if not booted():
        return False
    end = time.monotonic() + ANSWER_S
    while True:
        try:
            state = bounded.call(["systemctl", "is-system-running"], seconds=30.0).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return False
        if state not in UNANSWERED or time.monotonic() > end:
            return state == "stopping"
        time.sleep(LOOK_S)


def show(unit: str, names: list[str]) -> dict[str, str]:
    """Properties of a unit, of one moment: one call, however many. Raises SystemctlError.

    Properties that this systemd does not know are missing.
    """
    return _properties(run("show", unit, f"--property={','.join(names)}", seconds=SHOW_S))


def show_each(units: list[str], names: list[str]) -> list[dict[str, str]]:
    """The same of several units, in their order, in one call; `names` has one that every unit has, as Id."""
    said = run("show", f"--property={','.join(names)}", "--", *units, seconds=SHOW_S)
    blocks = said.split("\n\n")
    if len(blocks) != len(units):
        raise SystemctlError(f"systemctl show: {len(blocks)} answers for {len(units)} units")
    return [_properties(block) for block in blocks]


def _properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def seconds(span: str) -> float:
    """A time span as systemctl prints it ("1min 30s", "infinity"), in seconds; 0.0 for what is none."""
    if span == "infinity":
        return math.inf
    found = re.findall(r"([0-9.]+)(us|ms|s|min|h|d|w|month|y)(?:\s|$)", span)
    return sum(float(number) * _UNITS_S[unit] for number, unit in found)
