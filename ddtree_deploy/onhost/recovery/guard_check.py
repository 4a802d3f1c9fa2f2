"""What the boot guard does when systemd is about to start the service.

A start that the lock's holder asked for passes. Any other waits: for the holder, or, where none lives, for a
recovery in a unit of its own: a recovery stops and starts this very unit, and cannot from inside it. A start
that has waited never goes on with a definition that systemd may have read before: the unit is started anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ..programs import systemctl
from ..state import layout, releases
from ..state.held import LOCK, is_held, starts_the_service
from ..state.journal import read
from . import orphans

POLL_S = 0.05
KILLED_S = 120.0


def may_start(site_dir: Path, unit: str) -> int:
    """`guard SITE_DIR UNIT`, as `ExecStartPre=+` of the unit. 0 lets the start go on, 1 refuses it."""
    waited = False
    while True:
        if starts_the_service(site_dir):
            return _again(unit) if waited else 0
        if is_held(site_dir / LOCK):
            if not waited:
                print(f"a run is at work on this venv ({site_dir / LOCK}): waiting for it", flush=True)
            waited = True
            time.sleep(POLL_S)
            continue
        found = orphans.orphans(site_dir)
        if not found:
            return _again(unit) if waited else 0
        if any(_in_vain(site_dir / "runs" / run) for run in found):
            return _refuse(f"run {found[0]} could not be put right")
        print(f"run {found[0]} ended without a verdict: recovering it before the start", flush=True)
        waited = True
        if not _recover(site_dir, site_dir / "runs" / found[0]):
            return _refuse(f"the recovery of run {found[0]} could not be started")


def _in_vain(run_dir: Path) -> bool:
    """A recovery in this boot has failed already: another one at every start would only be in the way."""
    events, _ = read(run_dir / layout.JOURNAL)
    tried = [e for e in events if e["e"] == "recover"]
    ended = bool(events) and events[-1]["e"] == "end"
    return ended and bool(tried) and tried[-1].get("boot_id") == layout.boot_id()


def _recover(site_dir: Path, run_dir: Path) -> bool:
    """Run the recovery in a unit of its own, by the dead run's own runner. False when it did not begin."""
    argv = [
        "systemd-run", "--quiet", "--collect", "--wait", f"--unit=ddtree-deploy-recovery-{site_dir.name}",
        "--property=KillMode=process", "--property=TimeoutStopSec=300", "--property=OOMScoreAdjust=-500",
        f"--description=ddtree-deploy: recovery of run {run_dir.name}", "--",
        sys.executable, "-I", "-S", str(run_dir / layout.RUNNER), "recover", str(site_dir),
    ]  # fmt: skip
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        print(f"systemd-run: {error}", file=sys.stderr)
        return False
    if done.returncode and releases.unfinished(run_dir) and not is_held(site_dir / LOCK):
        print(done.stderr.decode(errors="replace").strip(), file=sys.stderr)
        return _in_vain(run_dir)  # it ran and said so itself: the loop finds its words
    return True


def _again(unit: str) -> int:
    """Start the unit anew, as it is defined now. This process is killed by that; it must not pass."""
    print("starting the service as it is defined now", flush=True)
    try:
        systemctl.run("--no-block", "restart", unit)
    except systemctl.SystemctlError as error:
        print(error, file=sys.stderr)
        return 1
    time.sleep(KILLED_S)
    return 1


def _refuse(reason: str) -> int:
    host = os.uname().nodename
    print(
        f"{reason}: the service would start half-changed; next: ddtree-deploy recover {host}", file=sys.stderr
    )
    return 1
