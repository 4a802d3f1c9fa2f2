"""What a lab has made outside its folder, on file, so that a killed test run leaves nothing for ever.

Each lab holds a lock on its record. A record that can be locked belongs to a lab whose process is dead: its
cgroups are killed, its namespaces, mounts and folders removed, by the names on record and no others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

RECORDS = Path("/run/ddtree-lab")
PREFIX = "dd"


class Record:
    """The list of one lab's namespaces, cgroups, mounts and folders."""

    def __init__(self) -> None:
        RECORDS.mkdir(mode=0o700, exist_ok=True)
        serial = 0
        while True:
            self.lab = f"{PREFIX}{os.getpid():x}{chr(ord('g') + serial)}"  # a letter that is no hex digit
            self.path = RECORDS / f"{self.lab}.json"
            if not self.path.exists():
                break
            serial += 1
        # Locked before it has its name: an unlocked record is swept by whichever lab begins at this moment.
        new = self.path.with_suffix(".new")
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._entries: dict[str, list[str]] = {"netns": [], "cgroup": [], "mount": [], "folder": []}
        self._write()
        new.rename(self.path)

    def add(self, kind: str, name: str | Path) -> None:
        """Put on record before it is made."""
        self._entries[kind].append(str(name))
        self._write()

    def release(self) -> None:
        """Remove everything on record, and the record."""
        _remove(self._entries)
        self.path.unlink()
        os.close(self._fd)

    def _write(self) -> None:
        data = json.dumps(self._entries).encode()
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))


def sweep() -> list[str]:
    """End the leftovers of labs whose process is dead; the names of those labs."""
    swept = []
    for path in sorted(RECORDS.glob(f"{PREFIX}*.json")):
        with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with contextlib.suppress(json.JSONDecodeError):  # killed while it wrote its very first line
                _remove(json.load(file))
            path.unlink()
            swept.append(path.stem)
    return swept


def _remove(entries: dict[str, Any]) -> None:
    for group in entries["cgroup"]:
        end_cgroup(Path(group))
    for mount in reversed(entries["mount"]):
        if os.path.ismount(mount):
            subprocess.run(["umount", "--lazy", mount], check=True)
    for name in entries["netns"]:
        if Path("/run/netns", name).exists():
            _end_processes(name)
            subprocess.run(["ip", "netns", "del", name], check=True)
    for folder in entries["folder"]:
        if Path(folder).exists():
            shutil.rmtree(folder)


def _end_processes(namespace: str) -> None:
    """Kill what still runs in a namespace of ours: controllers whose test is over, or dead."""
    pids = subprocess.run(["ip", "netns", "pids", namespace], check=True, capture_output=True, text=True)
    for pid in map(int, pids.stdout.split()):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end_cgroup(group: Path, timeout: float = 60.0) -> None:
    """Kill all that lives in a cgroup and remove it with its children."""
    if not group.exists():
        return
    (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + timeout
    while "populated 1" in (group / "cgroup.events").read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group} still has processes {timeout:.0f} s after cgroup.kill")
        time.sleep(0.005)
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(FileNotFoundError):
            Path(folder).rmdir()
