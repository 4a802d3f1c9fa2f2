"""Services that systemd runs. We change one drop-in of our own, never the unit or whether it is enabled."""

from __future__ import annotations

import base64
import math
import os
import re
import time
from pathlib import Path
from typing import Any

from ...context import Context, StepFailed
from ...programs import systemctl
from ...programs.systemctl import SystemctlError
from ...state import durable
from ...wire import masking
from ...wire.facts import ServiceFacts
from ...wire.protocol import Service
from .. import base, container, logs, proc
from ..base import Footprint, Record, ServiceError
from . import journal, manager, unitfile
from .closure import Closure
from .launch import UnitLaunch
from .manager import Command
from .unit import DROP_IN

TRANSIENT = "/run/systemd/transient/"


class SystemdControl(UnitLaunch):
    """One unit of the system manager; needs root."""

    def __init__(self, service: Service, state_dir: Path, secrets: dict[str, str]) -> None:
        super().__init__(service, state_dir, secrets)
        self._restarts = 0  # NRestarts when we started it
        self._started_at = 0.0  # in seconds since 1970
        self._main = (0, 0)  # (pid, start) of the main process, as seen last

    # ---- looking --------------------------------------------------------------------------------------

    def describe(self) -> ServiceFacts:
        with self.one_look():
            return self._described()

    def _described(self) -> ServiceFacts:
        try:
            shown = self._show()
            if shown.get("LoadState", "not-found") == "not-found":
                raise ServiceError(f"there is no unit {self.unit} (not-found)")
        except ServiceError as e:
            return ServiceFacts(kind="systemd", state="absent", problem=str(e))
        state = shown.get("ActiveState", "")
        pid = int(shown.get("MainPID") or 0)
        command, new, problem, digest, differs = [], [], "", "", []
        fragment, drop_ins = "", list[str]()
        try:
            defined = self._defined()
            fragment, drop_ins = defined.fragment, defined.drop_ins
            digest = base.digest(self._texts(ours=True))
            command = self._loaded().argv
            future = self._future()
            new = self.masked(self._argv(*future))
            problem = self._overruled(*future)
            differs = self._differences(shown) if state == "active" else []
        except ServiceError as e:
            problem = str(e)
        where = self._container(pid)
        try:
            along = self._closure()
        except ServiceError as e:
            along, problem = Closure(), str(e)
        return ServiceFacts(
            kind="systemd",
            state=state if state in ("active", "failed", "activating") else "inactive",
            pid=pid,
            command=self.masked(proc.argv(pid) or command),
            new_command=new,
            definition=fragment,
            drop_ins=drop_ins,
            listening=proc.port_open(self.endpoint.port),
            container=where,
            problem=self._problem(shown, where)
            or self._unfit(fragment, drop_ins)
            or along.refused
            or problem,
            digest=digest,
            differs=differs,
            dependents=sorted(along.stopped),  # systemd has no order for them
            conflicting=sorted(along.conflicting),
            stop_takes_s=_wire(systemctl.seconds(shown.get("TimeoutStopUSec", ""))),
        )

    def _container(self, pid: int) -> str:
        """Also that of whoever holds the port: the unit of a container may run no more than its client."""
        found = (container.of(one) for one in [pid, *sorted(proc.holders(self.endpoint.port))] if one)
        return next((where for where in found if where), "")

    def _problem(self, shown: dict[str, str], where: str) -> str:
        if where:
            return f"the service runs in a container ({where}); services in containers are not supported"
        if os.geteuid() != 0:
            return f"driving {self.unit} needs root: connect as root, or set `become: true`"
        if self._unread(shown):
            return (
                f"{self.unit} was changed on disk since systemd read it: run `systemctl daemon-reload` "
                "(or undo the change) first, so that what runs is what the files say"
            )
        return ""

    def _unfit(self, fragment: str, drop_ins: list[str]) -> str:
        later = [p for p in drop_ins if Path(p).name > DROP_IN]
        if later:
            return f"drop-in {later[0]} sorts after ours ({DROP_IN}) and would win"
        if fragment.startswith(TRANSIENT):
            return f"{self.unit} was made by systemd-run and is gone once it is stopped: give it a unit file"
        return ""

    def environment(self) -> dict[str, str]:
        try:
            return self._defined().environment(self._future()[1])
        except ServiceError:
            return {}

    def future_argv(self) -> list[str]:
        return self._argv(*self._future())

    def working_folder(self) -> str:
        return self._defined().folder()

    def running_argv(self) -> list[str]:
        try:
            return proc.argv(int(self._show().get("MainPID") or 0))
        except ServiceError:
            return []

    def owner(self) -> str:
        try:
            defined = self._defined()
            # A dynamic user is there as long as its service runs; this one has no more rights.
            return self.service.user or ("nobody" if defined.properties.get("DynamicUser") else defined.user)
        except ServiceError:
            return self.service.user

    def active(self) -> bool:
        return self._show().get("ActiveState") in ("active", "activating", "reloading", "deactivating")

    def started(self) -> bool:
        return self.active() or bool(self.processes().members)

    def ending(self) -> bool:
        return bool(self.stop_under_way()) or super().ending()

    def processes(self) -> Footprint:
        shown = self._show()
        found = proc.in_cgroup(shown.get("ControlGroup", "") or f"/system.slice/{self.unit}")
        members = frozenset(p.key for p in found if p.pid != os.getpid())
        return Footprint(int(shown.get("MainPID") or 0), members)

    def alive(self) -> tuple[bool, str]:
        shown = self._show()
        main = proc.read(int(shown.get("MainPID") or 0))
        self._main = main.key if main else (0, 0)
        restarts, status = int(shown.get("NRestarts") or 0), shown.get("ExecMainStatus", "?")
        ended = f"result {shown.get('Result', '?')}, exit status {status}"
        if restarts > self._restarts:
            return False, f"crash loop: systemd restarted it {restarts - self._restarts} times ({ended})"
        state, sub = shown.get("ActiveState", ""), shown.get("SubState", "")
        if sub == "auto-restart":
            return False, f"crash loop: systemd is about to restart it ({ended})"
        if state in ("active", "activating", "reloading"):
            return True, f"{state} ({sub})"
        return False, f"it is {state} ({ended})"

    def main_lives(self) -> bool:
        return self._main[0] > 0 and proc.alive(*self._main)

    def _log_file(self) -> Path | None:
        """Where StandardOutput= writes, when not to the journal; systemd tells only that it is a file."""
        if not self._show().get("StandardOutput", "").startswith(("file", "append", "truncate")):
            return None
        try:
            lines = unitfile.effective(self._texts(ours=True), "StandardOutput")
        except ServiceError:
            return None
        match = re.match(r"(?:file|append|truncate):(/.*)", lines[-1]) if lines else None
        return Path(match[1]) if match else None

    def log_tail(self, lines: int = 15) -> list[str]:
        path = self._log_file()
        found = logs.tail(path, lines) if path else journal.tail(self._show(), lines, self._started_at)
        return [logs.line(self.mask(text.rsplit("\r", 1)[-1])) for text in found][-lines:]

    def log_mark(self) -> str:
        path = self._log_file()
        if path is not None:
            return str(path.stat().st_size) if path.exists() else ""
        return journal.mark(self._show(), self._started_at)

    # ---- changing -------------------------------------------------------------------------------------

    def definition(self) -> dict[str, Any] | None:
        """{"path", "content", "mode"}: our drop-in as it is, in base64; null where there is none."""
        there = self.drop_in.exists()
        content = base64.b64encode(self.drop_in.read_bytes()).decode() if there else None
        mode = self.drop_in.stat().st_mode & 0o777 if there else None
        return {"path": str(self.drop_in), "content": content, "mode": mode}

    def apply_launch(self, ctx: Context) -> None:
        if not self.service.launch.edits:
            durable.remove(self.drop_in)
            self._reload()
            return
        try:
            with self.one_look():
                command, own = self._future()
                overruled = self._overruled(command, own)
                told = self._told(*self._base())
                fragment = self._defined().fragment
        except ServiceError as e:
            raise StepFailed(f"launch: {e}") from e
        if overruled:
            raise StepFailed(f"launch: {overruled}")
        line = unitfile.exec_line(command.path, command.argv, command.flags)
        carried = base.release_env(ctx)
        text = unitfile.drop_in(line, {**self.service.launch.env, **carried}, ctx.plan.run, told)
        self.drop_in.parent.mkdir(mode=0o755, exist_ok=True)
        # Not more open than the unit, which may hold a key.
        mode = Path(fragment).stat().st_mode & 0o644
        durable.replace(self.drop_in, text.encode(), mode)
        self._reload()
        self._check_read(command, [*own, *(f"{name}={value}" for name, value in carried.items())])

    def _check_read(self, command: Command, own: list[str]) -> None:
        """systemd holds what the drop-in was to say. Raises StepFailed."""
        try:
            held = self._defined()
        except ServiceError as e:
            raise StepFailed(f"launch: {e}") from e
        if held.drop_ins[-1:] != [str(self.drop_in)]:
            last = " ".join(held.drop_ins) or "no drop-ins"
            raise StepFailed(f"systemd does not read {self.drop_in} last: {last}")
        if held.commands != [command]:
            read = "; ".join(masking.shown(c.argv, self.secrets.values()) for c in held.commands)
            meant = masking.shown(command.argv, self.secrets.values())
            raise StepFailed(f"systemd reads {self.drop_in} as {read}, which was to be {meant}")
        if manager.pairs(held.own_environment) != manager.pairs(own):
            raise StepFailed(f"systemd does not read the Environment= of {self.drop_in} as it was meant")

    def restore_launch(self, ctx: Context, folder: Path) -> None:
        record = Record.load(folder).definition
        kept = (record or {}).get("content")
        if kept is None:
            existed = self.drop_in.exists()
            durable.remove(self.drop_in)
            if existed and not any(self.drop_in.parent.iterdir()):
                self.drop_in.parent.rmdir()
        elif kept != (self.definition() or {}).get("content"):
            self.drop_in.parent.mkdir(mode=0o755, exist_ok=True)
            durable.replace(self.drop_in, base64.b64decode(kept), int((record or {}).get("mode", 0o644)))
        else:
            durable.tidy(self.drop_in)
        self._reload()

    def launch_restored(self, folder: Path) -> str:
        kept = (Record.load(folder).definition or {}).get("content")
        now = (self.definition() or {}).get("content")
        if now != kept:
            return f"{self.drop_in} is not what it was"
        if self._unread(self._show()):
            return f"systemd has not read {self.unit} again"
        return ""

    def terminate(self) -> None:
        """Before it what would start it again: a socket, timer, path, or a unit that upholds it."""
        systemctl.run("stop", "--no-block", *self._closure().starters, self.unit)

    def start(self, ctx: Context) -> None:
        """And what went down with it, by this run's record."""
        if ctx.lock is not None:
            ctx.lock.starts(True)  # the boot guard lets it pass
        try:
            # A crash loop of before would count against StartLimitBurst= and NRestarts.
            systemctl.run("reset-failed", self.unit)
        except SystemctlError as e:
            ctx.progress(f"{e}")
        self._started_at = time.time()
        try:
            self._restarts = int(self._show().get("NRestarts") or 0)
        except ServiceError as e:
            raise StepFailed(str(e)) from e
        along = self._went_down(ctx)
        # systemd refuses to start a socket whose service runs already.
        sockets = [name for name in along if name.endswith(".socket")]
        self._try(ctx, sockets)
        systemctl.run("start", "--no-block", self.unit)
        self._try(ctx, [name for name in along if name not in sockets])

    def _went_down(self, ctx: Context) -> list[str]:
        if not (ctx.backup_dir / base.RECORD).exists():
            return []
        before = Record.load(ctx.backup_dir)
        return list(before.dependents) if before.active else []

    def _try(self, ctx: Context, names: list[str]) -> None:
        """Whether they are up in the end is judged by `dependents.require`; the service comes first."""
        try:
            self.start_units(names, alone=False)
        except StepFailed as e:
            ctx.progress(f"{e}")


def _wire(seconds: float) -> float:
    """JSON has no infinity."""
    return -1.0 if math.isinf(seconds) else seconds
