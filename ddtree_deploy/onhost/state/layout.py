"""Where things are in the state folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

JOURNAL = "journal.jsonl"
PLAN = "plan.json"
RUNNER = "runner.pyz"  # a link to our sources (`code`); of older versions a zipapp. Python runs either
PAYLOAD = "payload.tar.gz"
ALIVE = "alive"  # flock held by the process that writes the journal
WATCHED = "watched"  # touched by the followers at each heartbeat of their controller
RESERVE = "reserve"  # room for the journal when the disk is full; given back before an undo
RECEIVED = (PLAN, PAYLOAD, RESERVE)  # what a run that has not begun leaves, beside its runner
PREVIOUS = "previous_installed.json"
MANIFEST = "manifest.json"


def state_dir(asked: str) -> str:
    """The state folder for the `state_dir` of a host entry, absolute. "": the user's default."""
    default = "~/.local/state/ddtree-deploy" if os.geteuid() else "/var/lib/ddtree-deploy"
    return str(Path(asked or default).expanduser().absolute())


def site_key(site: str) -> str:
    """The key of a venv: from the real path of its site-packages."""
    return hashlib.sha256(os.fsencode(os.path.realpath(site))).hexdigest()[:16]


def site_dir(state: str, site: str) -> Path:
    return Path(state) / "sites" / site_key(site)


def read_json(path: Path) -> Any | None:
    """The JSON value in a file; None when it is absent or torn."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def venv_folders(plan: dict[str, Any]) -> list[str]:
    """The folders that a run of this plan changes, of those that lie apart; they exist."""
    site, package = str(plan.get("site", "")), str(plan.get("package_dir", ""))
    apart = package and not os.path.realpath(package).startswith(os.path.realpath(site) + "/")
    return [folder for folder in ([site, package] if apart else [site]) if os.path.isdir(folder)]


def sweep(site_dir: Path) -> None:
    """Remove what writers who died left half-written in a venv's state. Only for who holds its lock."""
    for pattern in (".*.tmp", "*/.*.tmp", "runs/*/.*.tmp"):
        for temp in site_dir.glob(pattern):
            with contextlib.suppress(OSError):
                temp.unlink()


def booted_since(file: Path) -> bool:
    """Whether the system was started after this was put there, as far as its clock can be trusted."""
    try:
        ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])  # proc(5): starttime
        since = float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        return file.lstat().st_ctime < time.time() - since
    except (OSError, ValueError, IndexError):
        return False


def time_text(seconds: float | None = None) -> str:
    """A time (of now, unless told) as the state's files and the facts write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def boot_id() -> str:
    """Changes with every boot; empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
