"""What every kind of service can do. The steps know only this."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..context import Context
from ..programs import bounded
from ..state import durable, releases
from ..wire import masking
from ..wire.facts import ServiceFacts
from ..wire.protocol import Service
from . import command_line, proc
from .sglang_api import Endpoint, HttpError, generate

RECORD = "service.json"
RELEASE = "DDTREE_DEPLOY_RELEASE"  # variable of the service: the release that it was started with
PROBE_S = 60.0
_GATHER_EVERY_S = 10.0


class ServiceError(Exception):
    """The service cannot be driven as asked; the message says why, and what to do."""


@dataclass(frozen=True)
class Footprint:
    """What a running service holds: processes as (pid, start), listening sockets as (TCP port, inode)."""

    main: int = 0
    members: frozenset[tuple[int, int]] = frozenset()
    sockets: frozenset[tuple[int, str]] = frozenset()

    @property
    def ports(self) -> set[int]:
        return {port for port, _ in self.sockets}

    def living(self) -> list[int]:
        return sorted(pid for pid, start in self.members if proc.alive(pid, start))


@dataclass(frozen=True)
class Record:
    """The service as it was, in `FOLDER/service.json` (0600): all that restoring needs.

    `definition` is the kind's own: for systemd the drop-in, else the launch of the process. `active`: it ran.
    `generated`: it answered a prompt of ours. `argv`: of the running server (its secrets unmasked).
    `dependents`: unit -> state, of what ran and goes down with the service; `conflicting`: of what ran and
    goes down when the service, which was down, is started.
    """

    kind: str
    active: bool
    generated: bool
    definition: dict[str, Any] | None
    argv: list[str] = field(default_factory=list)
    state: str = ""
    dependents: dict[str, str] = field(default_factory=dict)
    conflicting: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.replace(folder / RECORD, json.dumps(self.__dict__, indent=1).encode(), 0o600)

    @classmethod
    def load(cls, folder: Path) -> Record:
        path = folder / RECORD
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as e:
            raise ServiceError(f"the record of the service cannot be read: {path}: {e}") from e


@dataclass(frozen=True)
class UnitState:
    """A unit beside the service: up, down for good, or moving. `how` is for people."""

    up: bool
    moving: bool
    how: str


class ServiceControl(ABC):
    """Drives one service. Methods that take a Context may wait, show progress, and be interrupted."""

    def __init__(self, service: Service, state_dir: Path, secrets: dict[str, str]) -> None:
        self.service = service
        self.state_dir = state_dir
        self.secrets = secrets
        self.endpoint = Endpoint(service.endpoint, secrets.get("api_key", ""))
        self._hidden: set[str] = set()
        self._gather_at = 0.0

    # ---- looking --------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self) -> ServiceFacts:
        """The service as it is; no secrets. Never raises: what is wrong is in `problem`."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The environment the server gets after the edits, secrets included."""

    @abstractmethod
    def future_argv(self) -> list[str]:
        """The server's command line after the edits, secrets included. Raises ServiceError."""

    @abstractmethod
    def working_folder(self) -> str:
        """The working folder that the server is started in. Raises ServiceError."""

    def mounts(self) -> dict[str, str]:
        """Place -> the setting by which the server sees something else there than we do; "": the same."""
        return {}

    def socket_unit(self) -> str:
        """The socket unit of systemd that listens for the service; "" for none."""
        return ""

    @abstractmethod
    def processes(self) -> Footprint:
        """Processes of the service now, without their sockets; empty when it does not run."""

    def footprint(self) -> Footprint:
        """Processes and ports of the service now. The kernel takes its time to list all sockets of a host."""
        seen = self.processes()
        return dataclasses.replace(seen, sockets=frozenset(proc.sockets_of({pid for pid, _ in seen.members})))

    @abstractmethod
    def active(self) -> bool:
        """It runs, or is about to."""

    @abstractmethod
    def alive(self) -> tuple[bool, str]:
        """Whether what `start` started still runs, and if not, how it ended (a crash loop is an end)."""

    def stranger(self, argv: list[str]) -> str:
        """Who took the service's place: neither started by us nor with command line `argv`; "" for nobody."""
        return ""

    @abstractmethod
    def started(self) -> bool:
        """Something that `start` started lives, be it only a part of it."""

    def ending(self) -> bool:
        """It was asked to end and still drains: it may answer, and will be gone. SGLang's /health is 503."""
        try:
            self.endpoint.call("GET", "/health", seconds=10.0)
        except HttpError as e:
            return e.status == 503
        return False

    def stop_under_way(self) -> str:
        """In words, that its manager is at work on a stop and will end it; "" where nobody is."""
        return ""

    def main_lives(self) -> bool:
        """The main process that was seen last still lives; asked often, so only what costs nothing to know.

        False also where that is not known without a proper look.
        """
        return False

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """Inside, whatever is asked of the service is of one moment (and its manager is asked once)."""
        yield

    @abstractmethod
    def running_argv(self) -> list[str]:
        """The command line of the running server; empty when none runs."""

    @abstractmethod
    def log_tail(self, lines: int = 15) -> list[str]:
        """The last lines of the log since the last start, secrets masked."""

    @abstractmethod
    def log_mark(self) -> str:
        """Something that changes whenever the log grows."""

    @abstractmethod
    def owner(self) -> str:
        """The user the server runs as; empty: the user we are."""

    # ---- changing -------------------------------------------------------------------------------------

    @abstractmethod
    def definition(self) -> dict[str, Any] | None:
        """What defines the launch now, for the record; None when there is nothing yet."""

    @abstractmethod
    def apply_launch(self, ctx: Context) -> None:
        """Make the next start use the edited command line."""

    @abstractmethod
    def restore_launch(self, ctx: Context, folder: Path) -> None:
        """Make the next start use what `record(folder)` found. Idempotent."""

    @abstractmethod
    def launch_restored(self, folder: Path) -> str:
        """What differs from the record in `folder`, in words; empty when nothing does."""

    @abstractmethod
    def terminate(self) -> None:
        """Ask the service to end (SIGTERM or systemctl), without waiting."""

    @abstractmethod
    def start(self, ctx: Context) -> None:
        """Start it as defined; returns once that was accepted, long before it serves. Raises StepFailed."""

    # ---- what goes down with it, where a service manager takes it along --------------------------------

    def dependents(self) -> dict[str, str]:
        """Unit -> state, of what runs and goes down with the service; also what would start it by itself."""
        return {}

    def conflicting(self) -> dict[str, str]:
        """The same of what goes down when the service, which is down, is started."""
        return {}

    def start_units(self, names: list[str], *, alone: bool) -> None:
        """Start these, without waiting. `alone`: without what they require. Raises StepFailed."""
        raise ServiceError(f"only systemd starts units: {', '.join(names)}")

    def states(self, names: list[str]) -> dict[str, UnitState]:
        """How these are now."""
        return {}

    # ---- the boot guard, where a service manager starts services by itself ----------------------------

    def guarded_unit(self) -> str:
        """The unit that a boot guard can be put before; empty where nothing starts the service by itself."""
        return ""

    def guard_folder_is_bare(self) -> bool:
        """The drop-in folder is there already, and empty: it is not ours to remove."""
        return False

    def put_guard(self, argv: list[str], run: str) -> None:
        """Have `argv` run, as root, before every start. Raises ServiceError, StepFailed, OSError."""
        raise ServiceError("only a unit of systemd can be guarded")

    def remove_guard(self, *, keep_folder: bool) -> None:
        """Undo that. Idempotent. Raises ServiceError, StepFailed, OSError."""
        raise ServiceError("only a unit of systemd can be guarded")

    # ---- the same for all kinds -----------------------------------------------------------------------

    def record(self, folder: Path) -> Record:
        """Keep in `folder` what restoring needs, and return it."""
        generated = self.active() and self.generates()
        with self.one_look():
            active = self.active()
            record = Record(
                kind=self.service.kind,
                active=active,
                generated=active and generated,
                definition=self.definition(),
                argv=self.running_argv() if active else [],
                state=self.describe().state,
                dependents=self.dependents(),
                conflicting=self.conflicting(),
            )
        record.save(folder)
        return record

    def generates(self, seconds: float = PROBE_S) -> bool:
        """It answers a prompt of ours with tokens."""
        try:
            made = bounded.in_thread(
                lambda: generate(self.endpoint, "ddtree-deploy asks: is anybody there?", 4, seconds=seconds)
            )
        except HttpError:
            return False
        return bool(made.tokens)

    def known_secrets(self) -> set[str]:
        """Every value that must not be shown; also those of launches that this object has seen before."""
        if time.monotonic() >= self._gather_at:
            self._gather_at = time.monotonic() + _GATHER_EVERY_S
            self._hidden |= {value for value in self.secrets.values() if value}
            with self.one_look(), contextlib.suppress(ServiceError):
                self._hidden |= masking.secret_values(self.running_argv(), self.environment())
                self._hidden |= masking.secret_values(self.future_argv(), {})
        return self._hidden

    def mask(self, text: str) -> str:
        return masking.mask_text(text, self.known_secrets())

    def masked(self, argv: list[str]) -> list[str]:
        """A command line for people, without the secrets of the plan or of its own flags."""
        return masking.mask_argv(argv, self.secrets.values())

    def require_editable(self, argv: list[str], where: str) -> None:
        """Flags can be edited in `argv` as far as the launch wants that. Raises ServiceError."""
        wanted = self.service.launch
        reason = command_line.wrapper(argv)
        if reason and wanted.command is None and (wanted.set or wanted.unset):
            raise ServiceError(
                f"launch edits need a {where} sglang itself, but {reason}: "
                f"{masking.shown(argv, self.secrets.values())}; give the whole `launch.command`"
            )


def release_env(ctx: Context) -> dict[str, str]:
    """The variable that a service started by this run carries; empty where its launch is not ours."""
    carried = releases.carried(ctx.plan, ctx.state_dir)
    return {RELEASE: carried} if carried else {}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
