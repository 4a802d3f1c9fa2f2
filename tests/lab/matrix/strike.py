"""The faults of the matrix: what each does, and what a person does about it afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import faults
from tests.lab.controller import Running
from tests.lab.fake_venv import VENV
from tests.lab.hosts import Host, wait_for
from tests.lab.matrix.instant import Tail, children, held_still, runner_of

SHORT_S = 5.0  # of the faults that pass by themselves
TIME_OUT = "1500ms"  # of the step that is to run out of time
TIME_OUT_S = 1.5
# Kept free on a full disk: what journald and the venv's own bytecode write would else decide the test.
LEAVE = 16 * 1024


@dataclass
class Fault:
    """One fault on one host. `mend` takes back what does not pass by itself (a full disk)."""

    name: str
    host: Host
    note: str = ""
    rebooted: bool = False
    wait: bool = True  # for the host to be ready, where the fault is that it boots
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def strike(self, running: Running, tail: Tail | None) -> None:
        """Make it now; with the fault that passes after some seconds, return when it has passed."""
        pid = runner_of(self.host, tail) if tail is not None else 0
        getattr(self, "_" + self.name.replace("-", "_"))(running, pid)

    def mend(self) -> None:
        self._stack.close()

    def _kill_runner(self, running: Running, pid: int) -> None:
        if not pid:
            self.note = "the runner had gone already"
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the runner to be dead")

    def _kill_controller(self, running: Running, pid: int) -> None:
        with held_still(pid), contextlib.suppress(ProcessLookupError):
            running.signal(signal.SIGKILL)
            running.process.wait(60)

    def _cut(self, running: Running, pid: int) -> None:
        with held_still(pid):
            faults.cut_sessions(self.host)

    def _cut_5s(self, running: Running, pid: int) -> None:
        with faults.cut(self.host):
            time.sleep(SHORT_S)

    def _freeze_5s(self, running: Running, pid: int) -> None:
        with faults.frozen(self.host):
            time.sleep(SHORT_S)

    def _power_cut(self, running: Running, pid: int) -> None:
        if pid:  # it takes a moment to pull the plug
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.host.power_cut()
        self.rebooted = True
        self.host.boot(wait=self.wait)

    def _reboot(self, running: Running, pid: int) -> None:
        before = self.host.boot_id()
        with held_still(pid):
            self.host.run("systemctl --no-block reboot")
        self.rebooted = True
        self.host.await_reboot(before, wait=self.wait)

    def _disk_full(self, running: Running, pid: int) -> None:
        with held_still(pid):
            self._stack.enter_context(faults.full_disk(self.host, leave=LEAVE))

    def _read_only(self, running: Running, pid: int) -> None:
        with held_still(pid):
            self._stack.enter_context(faults.read_only(self.host, VENV))

    def _time_out(self, running: Running, pid: int) -> None:
        # Where the step waits for a program, that hangs; else the step itself takes too long.
        waiting = children(pid)
        with contextlib.ExitStack() as stack:
            for each in waiting or [pid]:
                stack.enter_context(held_still(each))
            self.note = "its program hangs" if waiting else ""
            time.sleep(TIME_OUT_S + 0.3)

    def _SIGINT(self, running: Running, pid: int) -> None:
        self._signal(running, pid, signal.SIGINT)

    def _SIGTERM(self, running: Running, pid: int) -> None:
        self._signal(running, pid, signal.SIGTERM)

    @staticmethod
    def _signal(running: Running, pid: int, sig: signal.Signals) -> None:
        """The runner stands still until the host has been told, so that it is struck at this instant."""
        with held_still(pid):
            with contextlib.suppress(ProcessLookupError):
                running.signal(sig)
            if pid:
                wait_for(lambda: running.process.poll() is not None or _asked(pid), "the interrupt to arrive")


def _asked(pid: int) -> bool:
    """Whether a SIGTERM waits for a stopped process, or it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:")).split()[1]
    return bool(int(pending, 16) & 1 << (signal.SIGTERM - 1))
