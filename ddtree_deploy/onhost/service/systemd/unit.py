"""A systemd unit as files: the texts that define it, and the boot guard's drop-in beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ...programs import systemctl
from ...programs.systemctl import SystemctlError
from ...state import durable
from ...venv.disk import sync
from ...wire.protocol import Service
from ..base import ServiceControl, ServiceError, UnitState
from . import closure, manager, sandbox, unitfile

# Drop-ins are read in the order of their file names, whatever folder they are in.
DROP_IN = "zzzz-ddtree-deploy.conf"
_SHOWN = [
    "LoadState", "ActiveState", "SubState", "MainPID", "ControlGroup", "NRestarts", "ExecMainStatus",
    "Result", "NeedDaemonReload", "StandardOutput",
    "Id", "Job", "TimeoutStopUSec", "InvocationID", "LogNamespace", *closure.EDGES,
]  # fmt: skip
GUARD = "zzzz-ddtree-deploy-guard.conf"  # sorts before ours, after everybody else's


class Unit(ServiceControl):
    """What is known of a unit from its files and from `systemctl show`."""

    units = Path("/etc/systemd/system")

    def __init__(self, service: Service, state_dir: Path, secrets: dict[str, str]) -> None:
        super().__init__(service, state_dir, secrets)
        self.unit = service.unit if "." in service.unit else f"{service.unit}.service"
        self.drop_in = self.units / f"{self.unit}.d" / DROP_IN
        self.guard = self.drop_in.with_name(GUARD)
        self._looks = 0  # `one_look`s that we are in
        self._seen: dict[str, str] = {}  # what systemd said in the one at hand
        self._definition: manager.Definition | None = None  # the same

    def _show(self) -> dict[str, str]:
        if self._seen:
            return self._seen
        try:
            shown = systemctl.show(self.unit, _SHOWN)
        except SystemctlError as e:
            raise ServiceError(str(e)) from e
        if self._looks:
            self._seen = shown
        return shown

    def _defined(self) -> manager.Definition:
        """The unit as systemd would start it now. Raises ServiceError."""
        if self._definition is not None:
            return self._definition
        found = manager.ask(self.unit)
        if found.properties.get("LoadState") != "loaded":
            _, why = (found.properties.get("LoadError") or ["", ""])[:2]
            raise ServiceError(f"systemd refuses {self.unit}: {why or found.properties.get('LoadState')}")
        if self._looks:
            self._definition = found
        return found

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """Each systemctl costs both sides 10 ms of CPU."""
        self._looks += 1
        try:
            yield
        finally:
            self._looks -= 1
            if not self._looks:
                self._seen, self._definition = {}, None

    def _texts(self, *, ours: bool) -> list[str]:
        """The unit file and its drop-ins in order, with or without our own; never the boot guard's."""
        defined = self._defined()
        paths = [defined.fragment, *defined.drop_ins]
        if ours and self.drop_in.exists() and str(self.drop_in) not in paths:
            paths.append(str(self.drop_in))
        texts = []
        for path in paths:
            if path and Path(path) != self.guard and (ours or Path(path) != self.drop_in):
                try:
                    # Bytes that are no UTF-8 stay what they are; a byte order mark is nothing to systemd.
                    texts.append(Path(path).read_bytes().decode("utf-8-sig", "surrogateescape"))
                except OSError as e:
                    raise ServiceError(f"{path} cannot be read: {e.strerror}") from e
        return texts

    def socket_unit(self) -> str:
        names = closure.units(self._show().get("TriggeredBy", ""))
        return next((name for name in names if name.endswith(".socket")), "")

    def mounts(self) -> dict[str, str]:
        try:
            return sandbox.mounts(systemctl.show(self.unit, sandbox.SHOWN))
        except SystemctlError as e:
            raise ServiceError(str(e)) from e

    def _reload(self) -> None:
        self._seen, self._definition = {}, None
        systemctl.run("daemon-reload")

    def _unread(self, shown: dict[str, str]) -> bool:
        """Somebody else changed the unit since systemd read it.

        Our guard is read with the launch, or, when it goes, with that.
        """
        return shown.get("NeedDaemonReload") == "yes" and not self.guard.exists()

    # ---- what goes down with it -----------------------------------------------------------------------

    def stop_under_way(self) -> str:
        """Also one that waits for dependents, which end first: a unit that runs and has a job."""
        shown = self._show()
        state = shown.get("ActiveState")
        if state != "deactivating" and not (state == "active" and _job(shown)):
            return ""
        limit = shown.get("TimeoutStopUSec", "")
        return f"systemd still stops {self.unit}, and lets it take its time" + (limit and f" ({limit})")

    def _closure(self) -> closure.Closure:
        try:
            return closure.of(self.unit, self._show())
        except SystemctlError as e:
            raise ServiceError(str(e)) from e

    def dependents(self) -> dict[str, str]:
        return self._closure().stopped

    def conflicting(self) -> dict[str, str]:
        return self._closure().conflicting

    def start_units(self, names: list[str], *, alone: bool) -> None:
        if not names:
            return
        with contextlib.suppress(SystemctlError):  # one that has failed too often is not started again else
            systemctl.run("reset-failed", "--", *names)
        mode = ["--job-mode=ignore-requirements"] if alone else []
        systemctl.run("start", "--no-block", *mode, "--", *names)

    def states(self, names: list[str]) -> dict[str, UnitState]:
        if not names:
            return {}
        asked = ["Id", "ActiveState", "SubState", "Job", "Result"]
        try:
            answers = systemctl.show_each(names, asked)
        except SystemctlError as e:
            raise ServiceError(str(e)) from e
        return {name: _state(one) for name, one in zip(names, answers, strict=True)}

    # ---- the boot guard -------------------------------------------------------------------------------

    def guarded_unit(self) -> str:
        return self.unit

    def guard_folder_is_bare(self) -> bool:
        folder = self.guard.parent
        return folder.is_dir() and not any(folder.iterdir())

    def put_guard(self, argv: list[str], run: str) -> None:
        """Our command first, then the unit's own: none of those may meet half a change either.

        A boot reads it. systemd at work reads it with the launch, which is put before any file is changed.
        """
        own = unitfile.effective(self._texts(ours=True), "ExecStartPre")
        self.guard.parent.mkdir(mode=0o755, exist_ok=True)
        durable.replace(self.guard, unitfile.guard(argv, own, run).encode(errors="surrogateescape"), 0o644)

    def remove_guard(self, *, keep_folder: bool) -> None:
        there = self.guard.exists()
        durable.remove(self.guard)
        folder = self.guard.parent
        if not keep_folder and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            sync(folder.parent)
        if there or self._show().get("NeedDaemonReload") == "yes":
            self._reload()


def _job(shown: dict[str, str]) -> bool:
    return shown.get("Job", "") not in ("", "0")


def _state(shown: dict[str, str]) -> UnitState:
    """A unit that is about to be restarted because it has failed is down."""
    active, sub = shown.get("ActiveState", ""), shown.get("SubState", "")
    moving = _job(shown) or (active in ("activating", "deactivating") and sub != "auto-restart")
    result = shown.get("Result", "")
    how = f"{active} ({sub})" if result in ("", "success") else f"{active} ({result})"
    return UnitState(active in ("active", "reloading", "refreshing") and not moving, moving, how)
