"""The formats that cross the wire: facts request, plan, events. Shared by controller and runner.

Everything is JSON. Dataclasses here are frozen; `from_dict` refuses unknown or missing keys, so that a runner
and a controller of different versions notice it before anything is touched.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any

PROTOCOL = 1
SIGNATURE_NAMESPACE = "ddtree-deploy"  # of `ssh-keygen -Y`
HEARTBEAT_S = 5.0
# A follower whose controller has been silent this long ends itself; the runner is not affected.
HEARTBEAT_LOST_S = 30.0
FACTS_MARK = "DDTREE-FACTS "


class ProtocolError(ValueError):
    """A message does not fit the format that this version speaks."""


def _build(cls: Any, value: Any, where: str) -> Any:
    """Build `cls` (a type annotation) from plain JSON data, strictly."""
    origin = typing.get_origin(cls)
    if cls is Any or cls is object:
        return value
    if origin in (list, tuple):
        (item, *_) = typing.get_args(cls)
        if not isinstance(value, list):
            raise ProtocolError(f"{where}: expected a list, got {type(value).__name__}")
        built = [_build(item, v, f"{where}[{i}]") for i, v in enumerate(value)]
        return tuple(built) if origin is tuple else built
    if origin is dict:
        _, item = typing.get_args(cls)
        if not isinstance(value, dict):
            raise ProtocolError(f"{where}: expected an object, got {type(value).__name__}")
        return {k: _build(item, v, f"{where}.{k}") for k, v in value.items()}
    if origin is not None:  # Optional[...] written as X | None
        if value is None and type(None) in typing.get_args(cls):
            return None
        (inner,) = [a for a in typing.get_args(cls) if a is not type(None)]
        return _build(inner, value, where)
    if dataclasses.is_dataclass(cls):
        return from_dict(cls, value, where)
    if cls is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, cls) or (cls is int and isinstance(value, bool)):
        raise ProtocolError(f"{where}: expected {cls.__name__}, got {type(value).__name__}")
    return value


def from_dict(cls: Any, data: Any, where: str = "") -> Any:
    """Build the dataclass `cls` from JSON data. Raises ProtocolError naming the field."""
    where = where or cls.__name__
    if not isinstance(data, dict):
        raise ProtocolError(f"{where}: expected an object, got {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise ProtocolError(f"{where}: unknown key {unknown[0]!r}")
    kwargs = {}
    for name, f in fields.items():
        if name in data:
            kwargs[name] = _build(hints[name], data[name], f"{where}.{name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{where}: missing key {name!r}")
    return cls(**kwargs)


def to_dict(value: Any) -> dict[str, Any]:
    """JSON-ready form of any dataclass of this module."""
    return dataclasses.asdict(value)


@dataclass(frozen=True)
class Launch:
    """How the server is started: the whole `command`, or edits of the present one. Flags without `--`."""

    command: list[str] | None = None
    set: dict[str, str | None] = field(default_factory=dict)  # flag -> value; None: a flag without value
    unset: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)  # added to the service's environment

    @property
    def edits(self) -> bool:
        """It changes anything at all."""
        return bool(self.command is not None or self.set or self.unset or self.env)


@dataclass(frozen=True)
class Serves:
    """Where a payload's server says which code it runs: in a field of /server_info, or a metric's label."""

    equals: str  # version: the payload's; modules: {module: digest of the code that was loaded}
    server_info: str = ""
    metric: str = ""
    label: str = ""


@dataclass(frozen=True)
class Service:
    """One serving process group on the host. Times in seconds."""

    name: str
    kind: str  # systemd | supervised | adopted
    endpoint: str  # http://127.0.0.1:30000
    unit: str = ""
    launch: Launch = field(default_factory=Launch)
    start_stalled_after_s: float = 600.0
    start_limit_s: float = 2700.0
    drain_s: float = 60.0
    stop_limit_s: float = 120.0
    stop_kill: bool = False  # end leftovers by pid, only when the user said so
    user: str = ""  # run venv code as this user; empty: the SSH user
    also_endpoints: list[str] = field(default_factory=list)  # further ones that the health gate asks


@dataclass(frozen=True)
class FactsRequest:
    """What the first, read-only exec asks. `refs` are `site:REL` and `sglang:REL` paths of all variants."""

    protocol: int
    state_dir: str  # "" = the default for the user; may start with ~
    refs: list[str]
    service: Service | None = None
    also_stop: list[str] = field(default_factory=list)  # command substrings allowed to share the venv
    contents: bool = False  # send the text of the files in `refs` and of installed files (for diffs)
    serving: bool = (
        False  # look whether the service shows the live release: its process, and the server itself
    )
    secrets: dict[str, str] = field(default_factory=dict)  # api_key, to ask the server
    package: str = "sglang"


@dataclass(frozen=True)
class FileState:
    """One path as it is: kind is absent | file | symlink | dir | other. `sha256` for files."""

    path: str
    kind: str
    sha256: str = ""
    mode: int = 0
    nlink: int = 0
    size: int = 0
    link: str = ""
    content_b64: str | None = None  # zlib + base64, only when asked and the file is at most 1 MiB


@dataclass(frozen=True)
class Target:
    """One path that the run brings into a wanted state.

    source: `blob:NAME`   a file of the payload archive, installed as it is
            `patch:NAME`  a unified diff in the archive, applied without fuzz to the base file
            `base`        the pristine upstream file kept in the state folder (`base_sha256`)
            `backup:RUN`  what run RUN's backup recorded for this path (content, links, or absence)
            `absent`      the path is removed
    """

    path: str  # absolute, on the host
    ref: str  # site:... or sglang:..., for people
    source: str
    sha256: str  # of the wanted content; "" for absent, "?" for backup:RUN
    before: str  # sha256 of the live file that the plan was made for; "" = absent
    base_sha256: str = ""  # pristine upstream content that a patch or an overlay belongs to; "" = a new file
    mode: int = 0o644


@dataclass(frozen=True)
class StepSpec:
    """One step of the playbook: `kind` chooses the module in `steps/`, options are that module's."""

    name: str
    kind: str
    timeout_s: float
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything the runner needs; made by a pure function on the controller, checked again on the host."""

    protocol: int
    run: str  # 20261129T174501-ab12cd
    action: str  # rollout | rollback, or one that installs nothing: verify | bench | golden | calibrate | ...
    host: str
    who: str
    created: str  # ISO 8601, the controller's clock
    python: str  # the host venv's interpreter, absolute
    state_dir: str
    site: str  # real path of site-packages: the key of lock and state
    package_dir: str  # the sglang package folder
    payload_name: str
    payload_version: str
    variant: str
    payload_digest: str  # sha256 of the archive
    release: str  # digest of the wanted installed state (sorted path, sha256, mode)
    targets: list[Target]
    steps: list[StepSpec]
    service: Service | None = None
    back_to: str = (
        ""  # rollback: the release id (run) returned to, "" = before the first; confirm: the held one
    )
    undoes: str = ""  # rollback: the run whose backup is restored
    accept_drift: bool = False
    also_stop: list[str] = field(default_factory=list)
    min_free_bytes: int = 0
    gpus: int | None = None
    on_controller_loss: str = "finish"  # finish | undo
    on_inconclusive: str = "rollback"  # rollback | hold
    signature: str = ""  # of the payload's digest, see signature.py
    serves: Serves | None = None  # what the payload's server says of itself
    secrets: dict[str, str] = field(default_factory=dict)  # api_key; kept out of journal and logs


# ---- events -------------------------------------------------------------------------------------------
# One JSON object a line, in the journal and on the channel alike:
#   {"n": 7, "t": 1790000000.1, "e": KIND, "step": NAME, ...}
#
#   run        plan summary, host, pid                       first line
#   start      a step begins                                 {step, kind}
#   progress   something to show; not fsynced                {step, text, [done, total, unit]}
#   intent     a mutation is about to happen; fsynced        {step, undo: {...}}   undo data is complete
#   output     a process ended                               {step, argv, rc, seconds, tail}
#   result     figures of a step, for later steps            {step, data: {...}}
#   verdict    a step ended                                  {step, verdict, reason, seconds}
#   undo       undo of a step begins / ended                 {step, phase: start|done|failed, reason}
#   end        last line                                     {verdict, exit, state, step, reason, next}
#   deferred   the host goes down, the undo is the next boot's  {step, boot_id, text}; last line, for now
#   done       the mutation of the last intent is complete    {step}; fsynced
#   hb         heartbeat, channel only, never in the journal
VERDICTS = ("pass", "fail", "inconclusive", "skipped")
# `state` of the end event: what the host is in now.
STATE_UNTOUCHED = "nothing was changed"
STATE_BEFORE = "as before"
STATE_NEW = "new release serving"
STATE_INSTALLED = "new release installed"  # no service
STATE_BACK = "earlier state back in place"  # a rollback that passed
STATE_HELD = "new release held, waiting for confirm or rollback"
STATE_APPLIED = "serving with other launch arguments"  # a sweep with --apply
STATE_BROKEN = "needs a person"


def signed_message(digest: str) -> bytes:
    """What is signed of a payload: its digest, and nothing that another tool would sign."""
    return f"ddtree-deploy payload {digest}\n".encode()
