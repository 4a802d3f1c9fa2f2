"""The machine: system, GPUs, and which processes use a venv."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

from ..programs.site_probe import MARK
from ..service import gpu_memory, proc
from ..wire.facts import Gpu, Process
from ..wire.masking import escape


def os_name() -> str:
    """PRETTY_NAME of os-release."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, ValueError):
        return os.uname().sysname


def gpus() -> tuple[list[Gpu], str]:
    """The GPUs as nvidia-smi gives them, and what is wrong with it ("" = nothing, or it is not there)."""
    rows, problem = gpu_memory.ask("--query-gpu=name,memory.total,memory.free")
    sizes = ((", ".join(row[:-2]), row[-2:]) for row in rows or [] if len(row) >= 3)
    return [Gpu(name, *map(int, mib)) for name, mib in sizes if all(map(str.isdigit, mib))], problem


def driver() -> str:
    """Version of NVIDIA's kernel module; empty where there is none."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return ""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", first)
    return found[1] if found else escape(first)[:80]


def free_bytes(path: str) -> int:
    """Bytes that this user can still write where `path` is, or will be."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize


def users_of(site: str, python: str, service_pid: int, allowed: list[str]) -> list[Process]:
    """Processes that use this venv: their program is its interpreter, or they have a file of it mapped.

    Left out: ourselves and those that started us, the service (its descendants, session, cgroup), and those
    whose command
    holds one of `allowed`. Processes of other users can only be seen by root.
    """
    table = proc.table()
    skip = _ancestors(os.getpid()) | {os.getpid()}
    own = _service_members(table, service_pid)
    folder = os.path.realpath(os.path.dirname(python))  # of the venv: the interpreter itself is a link
    found = []
    for pid in sorted(table):
        if pid in skip or pid in own:
            continue
        argv = proc.argv(pid)
        if not argv or _ours(argv) or not _uses(pid, argv, site, folder):
            continue
        command = " ".join(argv)
        if any(text in command for text in allowed):
            continue
        found.append(Process(pid, proc.command(pid, 200)))
    return found


def _ours(argv: list[str]) -> bool:
    """Facts, runners, followers: they run without the site module, so they import nothing of the venv."""
    return argv[1:3] == ["-I", "-S"] or MARK in argv


def _uses(pid: int, argv: list[str], site: str, bin_folder: str) -> bool:
    if _is_python(pid) and os.path.realpath(os.path.dirname(_program(pid, argv[0]))) == bin_folder:
        return True
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False
    return os.fsencode(site + "/") in maps


def _program(pid: int, word: str) -> str:
    """What was started as `word`: a path, one from its folder, or a name looked up in its PATH."""
    if "/" in word:
        return os.path.join(proc.cwd(pid), word)
    return shutil.which(word, path=proc.environ(pid).get("PATH")) or ""


def _is_python(pid: int) -> bool:
    """Scripts in the venv's bin show their interpreter; anything else there is no user of site-packages."""
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return True


def _ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while pid > 1:
        entry = proc.read(pid)
        if entry is None or entry.ppid in found:
            break
        pid = entry.ppid
        found.add(pid)
    return found


def _service_members(table: dict[int, proc.Proc], pid: int) -> set[int]:
    """All that belongs to the service whose main process is `pid`, also what was reparented."""
    if pid <= 0 or pid not in table:
        return set()
    members = proc.descendants(table, pid)
    members |= {p for p, entry in table.items() if entry.sid == table[pid].sid and entry.sid > 1}
    for path in proc.cgroups(pid):
        if path.endswith(".service"):
            members |= {p.pid for p in proc.in_cgroup(path)}
    return members
