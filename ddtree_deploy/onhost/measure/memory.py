"""Memory of a service: does it grow while the same requests come again and again? Pure but for `used`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

# Growth below this is no leak worth a rollback: allocators, logs, caches that fill.
FLOOR_MIB = 64.0
MIN_SAMPLES = 8


def used(pids: Iterable[int]) -> float:
    """Resident memory of these processes in MiB, shared pages once each process; -1: unknown."""
    total, seen = 0, False
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
                seen = True
    return total / 1024 if seen else -1.0


def growth(samples: Sequence[float]) -> tuple[float, float] | None:
    """(before, after) in MiB: medians of the second and the last quarter; None for too few samples.

    The first quarter is warm-up: caches fill, lazy imports happen. Samples under zero are unknown.
    """
    known = [s for s in samples if s >= 0]
    if len(known) < MIN_SAMPLES:
        return None
    quarter = len(known) // 4
    return median(known[quarter : 2 * quarter]), median(known[-quarter:])


def fault(what: str, samples: Sequence[float], allowed: float) -> str:
    """Why memory is not steady; empty when it is, or when too little is known. allowed: relative growth."""
    found = growth(samples)
    if found is None:
        return ""
    before, after = found
    if after - before <= max(FLOOR_MIB, allowed * before):
        return ""
    return (
        f"{what} grew from {before:.0f} to {after:.0f} MiB "
        f"({after / max(before, 1.0) - 1:+.0%}, allowed {allowed:.0%})"
    )
