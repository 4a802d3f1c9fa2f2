"""Starting a process of ours that outlives us: in a transient systemd unit, else in its own session.

The launch is a file (0600), read by a shim that sets everything up and execs the server in its own place.
So no secret is on a command line, and both ways of starting give the server the same environment, user and
limits.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ...programs import bounded, systemctl
from .. import proc

MARK = "DDTREE_SERVICE"

_SHIM = """
import json, os, pwd, resource, sys
d = json.load(open(sys.argv[1]))
log = os.open(d["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
null = os.open("/dev/null", os.O_RDONLY)
os.dup2(null, 0); os.dup2(log, 1); os.dup2(log, 2)
try:
    for name, (soft, hard) in d["limits"].items():
        kind = getattr(resource, name)
        top = resource.getrlimit(kind)[1]
        fits = lambda v: v if top == -1 or 0 <= v <= top else top
        resource.setrlimit(kind, (soft, hard) if os.geteuid() == 0 else (fits(soft), fits(hard)))
    if d["affinity"]:
        os.sched_setaffinity(0, set(d["affinity"]) & os.sched_getaffinity(0) or os.sched_getaffinity(0))
    os.chdir(d["cwd"] or "/")  # before we are somebody who may not enter it, as it was at the first start
    if d["user"] and os.geteuid() == 0:
        user = pwd.getpwnam(d["user"])
        if user.pw_uid:
            os.fchown(1, user.pw_uid, user.pw_gid)
            os.initgroups(d["user"], user.pw_gid); os.setgid(user.pw_gid); os.setuid(user.pw_uid)
    os.umask(d["umask"])
    os.execvpe(d["argv"][0], d["argv"], d["env"])
except Exception as e:
    print("ddtree-deploy: cannot start", d["argv"][0] + ":", e, file=sys.stderr, flush=True)
    os._exit(127)
"""


@dataclass(frozen=True)
class LaunchSpec:
    """All that a process needs to start again as it was. `limits`: RLIMIT name -> [soft, hard], -1: none.

    `base` is the command line before our edits, so that edits are always made from the original.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    user: str = ""
    umask: int = 0o022
    limits: dict[str, list[int]] = field(default_factory=dict)
    affinity: list[int] = field(default_factory=list)
    base: list[str] = field(default_factory=list)
    base_env: dict[str, str] = field(default_factory=dict)


# /proc/PID/limits -> resource's name.
_LIMITS = {
    "Max open files": "RLIMIT_NOFILE",
    "Max locked memory": "RLIMIT_MEMLOCK",
    "Max processes": "RLIMIT_NPROC",
    "Max stack size": "RLIMIT_STACK",
    "Max core file size": "RLIMIT_CORE",
}


def of_process(pid: int) -> LaunchSpec:
    """The launch of a running process, as far as /proc shows it."""
    import pwd

    owner = proc.uid(pid)
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = ""
    env = {k: v for k, v in proc.environ(pid).items() if k != MARK}
    try:
        affinity = sorted(os.sched_getaffinity(pid))
    except OSError:
        affinity = []
    argv = proc.argv(pid)
    return LaunchSpec(
        argv=argv,
        env=env,
        cwd=proc.cwd(pid),
        user=user,
        umask=_umask(pid),
        limits=_limits(pid),
        affinity=affinity,
        base=argv,
        base_env=env,
    )


def _umask(pid: int) -> int:
    found = re.search(r"^Umask:\s*([0-7]+)", proc.text(pid, "status"), re.M)
    return int(found[1], 8) if found else 0o022


def _limits(pid: int) -> dict[str, list[int]]:
    text = proc.text(pid, "limits")
    found = {name: re.search(rf"^{title} +(\w+) +(\w+)", text, re.M) for title, name in _LIMITS.items()}
    return {n: [-1 if w == "unlimited" else int(w) for w in m.groups()] for n, m in found.items() if m}


def own_limits() -> dict[str, list[int]]:
    """The limits that we run under ourselves."""
    return {name: list(resource.getrlimit(getattr(resource, name))) for name in _LIMITS.values()}


def _shim(launch_file: Path) -> list[str]:
    """The shim's text holds neither % nor $, which some versions of systemd would expand."""
    return [sys.executable, "-I", "-S", "-c", _SHIM, str(launch_file)]


def session(launch_file: Path, mark: str) -> subprocess.Popen[bytes]:
    """Start the launch in a session of its own. The caller keeps the Popen to learn the exit status."""
    return subprocess.Popen(
        _shim(launch_file),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        close_fds=True,
        cwd="/",
        env={MARK: mark},  # from its first instant it can be found again
    )


def transient(launch_file: Path, mark: str, unit: str) -> None:
    """Start the launch in a transient unit: it survives our own unit and the SSH session. Raises OSError."""
    with contextlib.suppress(systemctl.SystemctlError):
        systemctl.run("reset-failed", unit, seconds=30.0)
    options = [f"--setenv={MARK}={mark}", "--description=SGLang service started by ddtree-deploy"]
    # KillMode: what is left over is found and named by us, not ended in silence.
    properties = ["KillMode=process", "LimitNOFILE=infinity", "LimitMEMLOCK=infinity", "TasksMax=infinity"]
    argv = systemctl.transient(unit, _shim(launch_file), properties, options)
    done = bounded.call(argv, seconds=60.0, env=systemctl.environment())
    if done.returncode:
        raise OSError(f"systemd-run failed: {done.stderr.strip()}")
