"""Does the running process have what a start would give it now? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

# What systemd makes at each start, and shells for themselves.
STARTS_OWN = frozenset(
    """
    INVOCATION_ID JOURNAL_STREAM SYSTEMD_EXEC_PID MEMORY_PRESSURE_WATCH MEMORY_PRESSURE_WRITE NOTIFY_SOCKET
    LISTEN_FDS LISTEN_FDNAMES LISTEN_PID LISTEN_PIDFDID FDSTORE WATCHDOG_PID WATCHDOG_USEC PIDFILE
    CREDENTIALS_DIRECTORY SYSTEMD_NSS_DYNAMIC_BYPASS RUNTIME_DIRECTORY STATE_DIRECTORY CACHE_DIRECTORY
    LOGS_DIRECTORY CONFIGURATION_DIRECTORY LOG_NAMESPACE TRIGGER_UNIT TRIGGER_PATH REMOTE_ADDR REMOTE_PORT
    TRIGGER_TIMER_REALTIME_USEC TRIGGER_TIMER_MONOTONIC_USEC
    """.split()  # noqa: SIM905
)
ABSENT = "(not set)"


@dataclass(frozen=True)
class Start:
    """A process as it is started: what the kernel was asked for. None: not known beforehand."""

    program: str  # real path of what is executed: of a script its interpreter
    argv: list[str]
    environment: dict[str, str] | None
    folder: str | None  # real path
    uid: int | None


@dataclass(frozen=True)
class Difference:
    """One thing: as a start would give it now, and as the process has it."""

    what: str  # command | program | working folder | user | the name of a variable
    now: str | list[str]
    process: str | list[str]


def differences(now: Start, process: Start) -> list[Difference]:
    """What the running process has otherwise than a start would give it now."""
    if now.argv != process.argv:
        # `env`, `numactl`, a launcher: it has executed the rest of its words, and what it changed is its own
        return (
            [] if _executed_rest(now.argv, process.argv) else [Difference("command", now.argv, process.argv)]
        )
    found = []
    for what, one, two in (
        ("program", now.program, process.program),
        ("working folder", now.folder, process.folder),
        ("user", now.uid, process.uid),
    ):
        if one is not None and one != two:
            found.append(Difference(what, str(one), str(two)))
    old, new = process.environment, now.environment
    if old is not None and new is not None:
        for name in sorted({*old, *new} - STARTS_OWN):
            if old.get(name) != new.get(name):
                found.append(Difference(name, new.get(name, ABSENT), old.get(name, ABSENT)))
    return found


def _executed_rest(argv: list[str], running: list[str]) -> bool:
    for k in range(1, len(argv)):
        if running[1:] == argv[k + 1 :] and PurePosixPath(running[0]).name == PurePosixPath(argv[k]).name:
            return True
    return False
