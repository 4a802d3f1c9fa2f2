"""What this machine must have for a lab, said in words where it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

ROOM = 4 << 30  # bytes
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ip": "iproute2",
    "iptables": "iptables",
    "ssh": "openssh-client",
    "/usr/sbin/sshd": "openssh-server",
    "/usr/bin/python3": "python3",
    "/usr/bin/dbus-daemon": "dbus",
    "/lib/systemd/systemd": "systemd",
}


@cache
def cgroup_root() -> Path | None:
    """The cgroup v2 hierarchy: alone, or beside v1 (where systemd calls it `unified`)."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


@cache
def missing() -> tuple[str, ...]:
    """Every reason why no lab can be made here; empty where one can."""
    reasons = []
    if os.geteuid() != 0:
        return ("not root",)
    packages = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if packages:
        reasons.append(f"not installed: {' '.join(packages)} (apt-get install --no-install-recommends)")
    elif not list(Path("/lib").glob("*/security/pam_systemd.so")):
        reasons.append("not installed: libpam-systemd (sessions would have no cgroup of their own)")
    elif not _python_fits():
        reasons.append("/usr/bin/python3 is older than 3.10")
    root = cgroup_root()
    if root is None:
        reasons.append("no cgroup v2 hierarchy is mounted")
    elif not os.access(root, os.W_OK):
        reasons.append(f"{root} is read-only")
    if not packages and not _can_make_namespaces():
        reasons.append("namespaces are not allowed (a container without CAP_SYS_ADMIN?)")
    return tuple(reasons)


def _python_fits() -> bool:
    probe = "import sys; sys.exit(sys.version_info < (3, 10))"
    return subprocess.run(["/usr/bin/python3", "-I", "-c", probe], check=False).returncode == 0


def _can_make_namespaces() -> bool:
    done = subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True)
    return done.returncode == 0


def filesystem(path: Path) -> str:
    """The type of the filesystem that holds `path`."""
    best, kind = Path("/"), ""
    real = path.resolve()
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, fstype, *_ = line.split()
        mount = Path(where)
        if real.is_relative_to(mount) and (not kind or len(mount.parts) >= len(best.parts)):
            best, kind = mount, fstype
    return kind


def folder_for_disks() -> Path:
    """In memory where there is room: the hosts sync all that they write, and a power cut here loses none."""
    named = os.environ.get("DDTREE_LAB_DIR")
    memory = Path("/dev/shm")
    if named is None and memory.is_dir() and shutil.disk_usage(memory).free > ROOM:
        return memory
    folder = Path(named or tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    return memory if filesystem(folder) == "overlay" else folder
