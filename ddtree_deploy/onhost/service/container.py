"""Is a process in a container? Then the files we change are not those it runs, and it is refused by name."""

from __future__ import annotations

import os
import re

from . import proc

_RUNTIMES = (
    ("docker", re.compile(r"docker[-/]([0-9a-f]{12,64})")),
    ("podman", re.compile(r"libpod-(?:conmon-)?([0-9a-f]{12,64})")),
    ("containerd", re.compile(r"cri-containerd-([0-9a-f]{12,64})")),
    ("cri-o", re.compile(r"crio-([0-9a-f]{12,64})")),
    ("kubernetes", re.compile(r"kubepods[^:]*/(?:[a-z-]+-)?([0-9a-f]{12,64})")),
    ("lxc", re.compile(r"lxc(?:\.payload)?[./]([\w.-]+)")),
    ("systemd-nspawn", re.compile(r"machine\.slice/(?:machine-|systemd-nspawn@)([^/]+?)\.(?:scope|service)")),
)


def named(paths: list[str]) -> str:
    """`docker 0123456789ab` from a process's cgroup paths; empty when they name no container."""
    for path in paths:
        for runtime, pattern in _RUNTIMES:
            match = pattern.search(path)
            if match:
                return f"{runtime} {match[1][:12]}"
    return ""


def of(pid: int) -> str:
    """Runtime and id of the container that `pid` is in and we are not; empty when it shares our world."""
    words = proc.argv(pid)
    if words and words[0].rsplit("/", 1)[-1] == "docker-proxy":
        return "docker (the port is forwarded by docker-proxy)"
    ours, theirs = _world("self"), _world(str(pid))
    if ours is not None and theirs is not None:
        if ours == theirs:
            return ""
        return named(proc.cgroups(pid)) or "unknown runtime (it has another PID namespace or root folder)"
    name = named(proc.cgroups(pid))
    return "" if name == named(proc.cgroups(os.getpid())) else name


def _world(pid: str) -> tuple[str, int, int] | None:
    """PID namespace and root folder. The mount namespace says nothing: PrivateTmp= changes it, too."""
    try:
        namespace = str((proc.PROC / pid / "ns" / "pid").readlink())
        root = (proc.PROC / pid / "root").stat()
    except OSError:
        return None
    return (namespace, root.st_dev, root.st_ino)
