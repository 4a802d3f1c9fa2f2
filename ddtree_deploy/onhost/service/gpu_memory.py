"""After a stop, the memory of the GPUs is really free again: a driver gives it back later than processes end.

All by nvidia-smi, MiB. Where that is not there, nothing is known and nothing is waited for.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ..context import Context, StepFailed
from ..programs import bounded
from ..wire.masking import escape
from . import command_line, proc

ASK_S = 20.0
EVERY_S = 0.5
STEADY = 3  # so many equal looks in a row: it has levelled off
SLACK_MIB = 16
LIMIT_S = 60.0


@dataclass(frozen=True)
class Memory:
    """One GPU."""

    index: int
    total: int
    free: int


def look() -> dict[str, Memory]:
    """UUID -> memory of each GPU; empty where nvidia-smi is not there or does not answer."""
    rows = ask("--query-gpu=uuid,index,memory.total,memory.free")[0] or []
    return {r[0]: Memory(*map(int, r[1:])) for r in rows if len(r) == 4 and all(w.isdigit() for w in r[1:])}


def users() -> list[tuple[str, int, int]]:
    """(UUID, process, MiB) of everything that computes; a driver in a container may not tell."""
    rows = ask("--query-compute-apps=gpu_uuid,pid,used_gpu_memory")[0] or []
    return [
        (r[0], int(r[1]), int(r[2]) if r[2].isdigit() else 0) for r in rows if len(r) == 3 and r[1].isdigit()
    ]


def used() -> int:
    """MiB in use over all GPUs; -1 where nvidia-smi is not there or does not answer."""
    rows = ask("--query-gpu=memory.used")[0]
    return -1 if rows is None else sum(int(row[0]) for row in rows if row[0].isdigit())


def ask(query: str) -> tuple[list[list[str]] | None, str]:
    """The rows of nvidia-smi (None: no answer), and what is wrong with it ("" also where it is not there)."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None, ""
    try:
        done = bounded.call([tool, query, "--format=csv,noheader,nounits"], seconds=ASK_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"nvidia-smi does not answer: {type(error).__name__}"
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return None, f"nvidia-smi ended with {done.returncode}: {escape(said[0])[:160] if said else ''}"
    lines = filter(str.strip, done.stdout.splitlines())
    return [[word.strip() for word in line.split(",")] for line in lines], ""


def used_by(pids: Iterable[int]) -> set[str]:
    """The GPUs on which one of these processes holds memory."""
    wanted = set(pids)
    return {uuid for uuid, pid, _ in users() if pid in wanted}


def free_without(pids: Iterable[int]) -> dict[str, int]:
    """UUID -> MiB that are free once these processes have given all back; empty where it is not told."""
    now, wanted = look(), set(pids)
    held = [(uuid, mib) for uuid, pid, mib in users() if pid in wanted]
    if any(uuid not in now or not mib for uuid, mib in held):
        return {}
    return {uuid: now[uuid].free + sum(mib for u, mib in held if u == uuid) for uuid, _ in held}


def fraction_of(argv: list[str]) -> float:
    """The share of each GPU that a server takes, by SGLang's `--mem-fraction-static`; 0: it is not said."""
    try:
        return float((command_line.values_of(argv, "mem-fraction-static") or ["0"])[0])
    except ValueError:
        return 0.0


def wait_free(
    ctx: Context,
    uuids: set[str],
    fraction: float,
    limit_s: float = LIMIT_S,
    all_back: dict[str, int] | None = None,
) -> str:
    """Wait until free memory has levelled off on these GPUs, at `fraction` of the total at least.

    all_back: see `free_without`; a level of that is the last one, and need not prove itself.

    Returns what was seen, for people; "" where nothing can be known. Raises StepFailed after `limit_s`; it
    names who holds the memory.
    """
    end = time.monotonic() + limit_s
    before: dict[str, Memory] = {}
    steady = 0
    while True:
        now = {uuid: memory for uuid, memory in look().items() if uuid in uuids}
        if not now:
            return ""
        steady = steady + 1 if before.keys() == now.keys() and _level(before, now) else 0
        before = now
        short = {uuid for uuid, memory in now.items() if memory.free < fraction * memory.total}
        back = all(m.free + SLACK_MIB >= (all_back or {}).get(uuid, m.total) for uuid, m in now.items())
        if (back or steady >= STEADY - 1) and not short:
            least = min(m.free for m in now.values())
            return f"{least} MiB free on {len(now)} GPU{'' if len(now) == 1 else 's'}"
        if time.monotonic() >= end:
            raise StepFailed(_said(now, short or set(now), fraction, limit_s))
        ctx.pause(EVERY_S)


def _level(before: dict[str, Memory], now: dict[str, Memory]) -> bool:
    return all(abs(now[uuid].free - before[uuid].free) <= SLACK_MIB for uuid in now)


def _said(now: dict[str, Memory], which: set[str], fraction: float, limit_s: float) -> str:
    parts = []
    for uuid in sorted(which, key=lambda u: now[u].index):
        memory = now[uuid]
        need = f", {fraction * memory.total:.0f} MiB needed" if fraction else " and still changing"
        held = [
            f"process {pid} ({proc.command(pid)}) holds {mib} MiB" for u, pid, mib in users() if u == uuid
        ]
        parts.append(
            f"GPU {memory.index}: {memory.free} MiB free{need}: {', '.join(held) or 'no process is shown'}"
        )
    return f"GPU memory is not free {limit_s:.0f} s after the stop: {'; '.join(parts)}"
