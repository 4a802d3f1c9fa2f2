"""Who holds a folder of a venv, where it is no run in this state folder.

The kernel says which process (`/proc/locks`); the process's command line, which run and which state folder.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

from . import layout
from .held import is_held
from .lock import Held, read_owner

_ON_RUN, _ON_SITE = ("run", "recover-run"), ("recover",)


def of(held: Held) -> dict[str, Any]:
    """{run, who, pid, since, step, action} of who holds a lock, and `state_dir` where that is not ours."""
    return of_folder(held.folder) if held.folder else held.owner


def of_folder(folder: str) -> dict[str, Any]:
    """The same of who holds a folder of a venv, as far as it can be seen; {} for nobody."""
    return _of_process(_pid(folder)) if is_held(folder) else {}


def _pid(folder: str) -> int:
    """The process that took the flock; 0 where the kernel does not show it to us."""
    info = os.stat(folder)
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    found: list[tuple[bool, int]] = []
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        words = line.split()
        # Some file systems have another device number here than in stat(2).
        if words[1:2] == ["FLOCK"] and words[5].rpartition(":")[2] == str(info.st_ino):
            found.append((words[5] == place, int(words[4])))
    return max(found, default=(False, 0))[1]


def _of_process(pid: int) -> dict[str, Any]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return {"who": "somebody who cannot be seen from here"}
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    told: dict[str, Any] = {"who": user, "pid": pid}
    for runner, command, subject in zip(words, words[1:], words[2:]):  # noqa: B905  (Python 3.8)
        path = Path(os.fsdecode(subject))
        if runner.endswith(b"/" + layout.RUNNER.encode()) and command.decode("latin-1") in _ON_RUN + _ON_SITE:
            on_run = command.decode("latin-1") in _ON_RUN
            site_dir = path.parent.parent if on_run else path
            told.update({"run": path.name if on_run else "", "state_dir": str(site_dir.parent.parent)})
            said = read_owner(site_dir)  # where we may read it
            return {**told, **(said if said.get("pid") == pid else {})}
    return told
