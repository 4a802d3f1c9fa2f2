"""Services that are processes of ours: `supervised` from the first start, `adopted` from the first stop.

State of a service, in STATE/services/NAME/ (0700):

    launch.json    how it is started (a LaunchSpec); for `adopted` the live process decides while it runs
    running.json   {"pid", "start", "boot_id", "log", "unit"} of the process that we started last
    logs/          one file a start, the newest five
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...context import Context, StepFailed
from ...programs import process, systemctl
from ...programs.process import minimal_env
from ...programs.systemctl import SystemctlError
from ...state import durable, layout
from ...wire import masking
from ...wire.facts import ServiceFacts
from ...wire.protocol import Service
from .. import base, command_line, container, logs, proc
from ..base import Footprint, Record, ServiceControl, ServiceError
from . import spawn
from .spawn import LaunchSpec

# Children of this very process: only their parent can learn how they ended.
_children: dict[int, subprocess.Popen[bytes]] = {}


class ProcessControl(ServiceControl):
    """`supervised` and `adopted`. They differ in where the first launch comes from."""

    def __init__(self, service: Service, state_dir: Path, secrets: dict[str, str]) -> None:
        super().__init__(service, state_dir, secrets)
        self.folder = state_dir / "services" / service.name
        # The name alone would also match the service of another venv or sandbox on this machine.
        self.mark = f"{service.name}:{self.folder}"

    # ---- looking --------------------------------------------------------------------------------------

    def _running(self) -> dict[str, Any]:
        """running.json of this boot, or empty."""
        try:
            data: dict[str, Any] = json.loads((self.folder / "running.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return data if data.get("boot_id") == layout.boot_id() else {}

    def _ours(self) -> proc.Proc | None:
        """The process that we started last, if it still runs."""
        running = self._running()
        if running and proc.alive(running["pid"], running["start"]):
            return proc.read(running["pid"])
        # Started just before whoever started it was killed, and so never noted down.
        leaders = (found for found in map(proc.read, self._marked()) if found and found.sid == found.pid)
        return next(leaders, None)

    def _main(self) -> proc.Proc | None:
        ours = self._ours()
        if ours is not None or self.service.kind == "supervised" or self._left_over():
            return ours
        return proc.server_of(self.endpoint.port)

    def _left_over(self) -> set[int]:
        """Processes of ours, also after the main one has ended."""
        return self._marked() | self._session(proc.table())

    def started(self) -> bool:
        return bool(self._left_over())

    def stranger(self, argv: list[str]) -> str:
        main = self._main()
        if main is None or self._ours() is not None or self._left_over() or proc.argv(main.pid) == argv:
            return ""
        return f"port {self.endpoint.port} is held by process {main.pid} ({proc.command(main.pid)})"

    def _saved(self) -> dict[str, Any] | None:
        try:
            data: dict[str, Any] = json.loads((self.folder / "launch.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            raise ServiceError(f"{self.folder / 'launch.json'} cannot be read: {e}") from e
        return data

    def definition(self) -> dict[str, Any] | None:
        main = self._main()
        if main is None or self._ours() is not None:
            return self._saved()
        return asdict(spawn.of_process(main.pid))

    def _edited(self, definition: dict[str, Any] | None) -> LaunchSpec:
        """The launch after the edits. They are made from the command line before any edit of ours."""
        wanted = self.service.launch
        if definition is not None:
            spec = LaunchSpec(**definition)
        elif wanted.command is not None:
            spec = self._fresh()
        else:
            raise ServiceError(self._nothing())
        self.require_editable(spec.base, "command that runs")
        argv = command_line.edit(spec.base, wanted)
        if not argv:
            raise ServiceError("the launch command is empty")
        user = self.service.user or spec.user
        return replace(spec, argv=argv, env={**spec.base_env, **wanted.env}, user=user)

    def _fresh(self) -> LaunchSpec:
        """A first launch: a login-like environment, the user's home."""
        try:
            env = minimal_env(self.service.user)
        except KeyError as e:
            name = self.service.user or str(os.geteuid())
            raise ServiceError(f"there is no user {name!r} on this host") from e
        del env["LC_ALL"]  # it would win over what `launch.env` says of the locale
        command = list(self.service.launch.command or [])
        limits = spawn.own_limits()
        return LaunchSpec(
            command, env, env["HOME"], user=env["USER"], limits=limits, base=command, base_env=env
        )

    def _nothing(self) -> str:
        if self.service.kind == "supervised":
            return "it was never started by this tool: `launch.command` must give its whole command line"
        return (
            f"nothing listens on port {self.endpoint.port} and there is no record of an earlier process: "
            "start the service, or use `kind: supervised` with `launch.command`"
        )

    def describe(self) -> ServiceFacts:
        main = self._main()
        state = "active" if main else ("inactive" if (self.folder / "launch.json").exists() else "absent")
        command, new, problem, found = [], [], "", None
        try:
            found = self.definition()
            command = self.masked(proc.argv(main.pid) if main else list((found or {}).get("argv", [])))
            new = self.masked(self._edited(found).argv)
        except ServiceError as e:
            problem = str(e)
        return ServiceFacts(
            kind=self.service.kind,
            state=state,
            pid=main.pid if main else 0,
            command=command,
            new_command=new,
            definition=self._where(main),
            listening=proc.port_open(self.endpoint.port),
            container=container.of(main.pid) if main else "",
            problem=self._problem(main) or problem,
            digest=base.digest(found) if found else "",
        )

    def _where(self, main: proc.Proc | None) -> str:
        if main is not None and self._ours() is None:
            return f"process {main.pid} on port {self.endpoint.port}"
        return str(self.folder / "launch.json")

    def _problem(self, main: proc.Proc | None) -> str:
        port = self.endpoint.port
        if main is None:
            holders = proc.holders(port)
            if not holders and proc.port_open(port):
                return f"port {port} is held by a process that may not be seen (another user's?)"
            others = sorted(holders - self._marked())
            if others:
                kind = "; use `kind: adopted` to take it over" if self.service.kind == "supervised" else ""
                return f"port {port} is held by process {others[0]} ({proc.command(others[0])}){kind}"
            return ""
        where = container.of(main.pid)
        if where:
            return f"the service runs in a container ({where}); services in containers are not supported"
        if os.geteuid() != 0 and proc.uid(main.pid) != os.geteuid():
            return f"process {main.pid} belongs to another user; connect as that user or as root"
        if self.service.kind == "adopted" and self._ours() is None:
            return self._unadoptable(main.pid)
        return ""

    def _unadoptable(self, pid: int) -> str:
        if not proc.argv(pid) or not proc.environ(pid) or not proc.cwd(pid):
            return f"command line, environment or folder of process {pid} cannot be read"
        units = {path.rsplit("/", 1)[1] for path in proc.cgroups(pid) if path.endswith(".service")}
        for unit in sorted(units):
            with contextlib.suppress(SystemctlError):
                if systemctl.show(unit, ["MainPID"]).get("MainPID") == str(pid):
                    return f"process {pid} is run by systemd: use `kind: systemd` with `unit: {unit}`"
        return ""

    def environment(self) -> dict[str, str]:
        try:
            return dict(self._edited(self.definition()).env)
        except ServiceError:
            return {}

    def future_argv(self) -> list[str]:
        return self._edited(self.definition()).argv

    def working_folder(self) -> str:
        return self._edited(self.definition()).cwd or "/"

    def running_argv(self) -> list[str]:
        main = self._main()
        return proc.argv(main.pid) if main else []

    def owner(self) -> str:
        try:
            return self._edited(self.definition()).user
        except ServiceError:
            return self.service.user

    def active(self) -> bool:
        return self._main() is not None

    def _marked(self) -> set[int]:
        return set(process.marked(f"{spawn.MARK}={self.mark}\0"))

    def _session(self, processes: dict[int, proc.Proc]) -> set[int]:
        """What is left of the session that we started. SGLang renames its schedulers, and the new name
        overwrites the environment that /proc shows: the mark alone would miss them.
        """
        running = self._running()
        if not running:
            return set()
        leader = processes.get(running["pid"])
        if leader is not None and leader.start != running["start"]:
            return set()  # the number belongs to somebody else, so the session had ended
        return {p.pid for p in processes.values() if p.sid == running["pid"] and p.start >= running["start"]}

    def processes(self) -> Footprint:
        main, pids = self._main(), self._marked()
        processes = proc.table()
        pids |= self._session(processes)
        if main is not None:
            pids |= proc.descendants(processes, main.pid)
            # Only where it leads its group or session: in a terminal these hold the user's shell, too.
            pids |= {p.pid for p in processes.values() if main.pid in (p.pgid, p.sid)}
        members = frozenset(processes[pid].key for pid in pids if pid in processes)
        return Footprint(main.pid if main else 0, members)

    def alive(self) -> tuple[bool, str]:
        running = self._running()
        if not running:
            return False, "it was not started"
        pid = running["pid"]
        if proc.alive(pid, running["start"]):
            return True, f"process {pid} runs"
        child = _children.get(pid)
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return False, _ended(child.wait(5.0))
        if running["unit"]:
            shown = systemctl.show(running["unit"], ["ExecMainStatus", "Result"])
            return False, f"it ended: {shown.get('Result', '?')}, status {shown.get('ExecMainStatus', '?')}"
        return False, f"process {pid} is gone"

    def log_tail(self, lines: int = 15) -> list[str]:
        path = self._running().get("log", "")
        return [logs.line(self.mask(text)) for text in logs.tail(Path(path), lines)] if path else []

    def log_mark(self) -> str:
        try:
            return str(Path(self._running()["log"]).stat().st_size)
        except (OSError, KeyError):
            return ""

    # ---- changing -------------------------------------------------------------------------------------

    def _save(self, definition: dict[str, Any]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.replace(self.folder / "launch.json", json.dumps(definition, indent=1).encode(), 0o600)

    def apply_launch(self, ctx: Context) -> None:
        try:
            # The process is stopped by now: what it was is in this run's record.
            recorded = ctx.backup_dir / base.RECORD
            found = Record.load(ctx.backup_dir).definition if recorded.exists() else self.definition()
            spec = self._edited(found)
            self._save(asdict(replace(spec, env={**spec.env, **base.release_env(ctx)})))
        except ServiceError as e:
            raise StepFailed(f"launch: {e}") from e

    def restore_launch(self, ctx: Context, folder: Path) -> None:
        definition = Record.load(folder).definition
        if definition is None:
            durable.remove(self.folder / "launch.json")
        elif self._saved() != definition:
            self._save(definition)
        else:
            durable.tidy(self.folder / "launch.json")

    def launch_restored(self, folder: Path) -> str:
        same = self._saved() == Record.load(folder).definition
        return "" if same else f"{self.folder / 'launch.json'} is not what it was"

    def terminate(self) -> None:
        main = self._main()
        if main is None:
            return
        if self._ours() is None:  # adopting: from now on it is started by us, just as it was
            self._save(asdict(spawn.of_process(main.pid)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(main.pid, signal.SIGTERM)

    def start(self, ctx: Context) -> None:
        saved = self._saved()
        if saved is None:
            raise StepFailed(f"service {self.service.name}: {self._nothing()}")
        spec = LaunchSpec(**saved)
        log = logs.new(self.folder / "logs")
        todo = {**asdict(spec), "env": {**spec.env, spawn.MARK: self.mark}, "log": str(log)}
        path = self.folder / "start.json"
        durable.replace(path, json.dumps(todo).encode(), 0o600)
        ctx.progress(f"starting: {masking.shown(spec.argv, self.known_secrets())}")
        unit = self._unit() if systemctl.can_run() else ""
        try:
            pid = self._launch(path, unit)
        except (OSError, subprocess.SubprocessError) as e:
            raise StepFailed(f"the service could not be started: {e}") from e
        found = proc.read(pid)
        running = {
            "pid": pid,
            "start": found.start if found else 0,
            "boot_id": layout.boot_id(),
            "log": str(log),
            "unit": unit,
        }
        durable.replace(self.folder / "running.json", json.dumps(running).encode(), 0o600)

    def _unit(self) -> str:
        """Name of the transient unit; the folder's digest tells apart services of one name."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", self.service.name)
        return f"ddtree-{name}-{base.digest(str(self.folder))[:8]}.service"

    def _launch(self, path: Path, unit: str) -> int:
        if not unit:
            child = spawn.session(path, self.mark)
            _children[child.pid] = child
            return child.pid
        spawn.transient(path, self.mark, unit)
        return int(systemctl.show(unit, ["ExecMainPID"]).get("ExecMainPID", "0"))


def _ended(rc: int) -> str:
    if rc < 0:
        return f"it was ended by signal {-rc} ({signal.Signals(-rc).name})"
    return f"it ended with exit status {rc}"
