"""The kinds of steps."""

from __future__ import annotations

KINDS = (
    "lock",
    "preflight",
    "backup",
    "stage",
    "compile",
    "smoke",
    "baseline",
    "stop",
    "install",
    "start",
    "health",
    "tokens",
    "acceptance",
    "benchmark",
    "soak",
    "calibrate",
    "sweep",
    "confirm",
    "unlock",
    "run",
)


# What judges the service after its start.
GATES = ("tokens", "acceptance", "benchmark", "soak")


# What restarts the service, and leaves it as it was.
RESTARTS = ("calibrate", "sweep")
