"""The few systemctl calls that we need, each with a deadline, and ended with the step that needs it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from . import bounded, dbus

BOOTED = Path("/run/systemd/system")  # sd_booted(3)
ANSWER_S = 5.0
SHOW_S = 30.0
DO_S = 120.0
VERBS = {
    "start": ("StartUnit", "replace"),
    "stop": ("StopUnit", "replace"),
    "reset-failed": ("ResetFailedUnit",),
    "daemon-reload": ("Reload",),
}
LOOK_S = 0.1
UNANSWERED = ("", "offline", "unknown")  # what `is-system-running` says when nobody does


class SystemctlError(Exception):
    """systemctl failed or is not there; the message is its own."""


def run(*args: str, seconds: float = 60.0) -> str:
    """stdout of `systemctl ARGS`. Raises SystemctlError."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "SYSTEMD_PAGER": ""}
    try:
        done = bounded.call(["systemctl", "--no-pager", *args], seconds=seconds, env=env)
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
    if not BOOTED.is_dir():
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


def do(verb: str, *units: str) -> None:
    """One of VERBS; a start or stop is not waited for. Raises SystemctlError."""
    method, *mode = VERBS[verb]
    if os.geteuid() == 0:
        try:
            dbus.manage(method, *units, *mode, seconds=DO_S)
        except dbus.Refused as error:
            raise SystemctlError(f"systemctl {' '.join([verb, *units])}: {error}") from error
        except dbus.BusError:
            pass
        else:
            return
    run(verb, *(["--no-block"] if mode else []), *units, seconds=DO_S)


def show(unit: str, names: list[str]) -> dict[str, str]:
    """Properties of a unit. A property that comes more than once is joined with newlines."""
    if os.geteuid() == 0:
        with contextlib.suppress(dbus.BusError):
            return dbus.show(unit, names, seconds=SHOW_S)
    found: dict[str, str] = {}
    for line in run("show", unit, f"--property={','.join(names)}", seconds=SHOW_S).splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found[name] = f"{found[name]}\n{value}" if name in found else value
    return found
