"""The answer to the facts exec: what the host is, before anything is touched. Shared with the controller."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from .protocol import FileState, ProtocolError, from_dict, to_dict

LIMIT = 64 << 20  # bytes


@dataclass(frozen=True)
class Package:
    """An installed distribution; `folder` is its package folder as the host's Python finds it (find_spec)."""

    version: str
    folder: str = ""
    editable: bool = False


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_total_mib: int
    memory_free_mib: int


@dataclass(frozen=True)
class ServiceFacts:
    """The service as it is. `command` and `new_command` are masked; `problem` is why we cannot drive it."""

    kind: str
    state: str  # active | inactive | failed | activating | absent
    pid: int = 0
    command: list[str] = field(default_factory=list)
    new_command: list[str] = field(default_factory=list)  # after the launch edits
    definition: str = ""  # unit file or record that it comes from
    drop_ins: list[str] = field(default_factory=list)
    listening: bool = False
    container: str = ""  # runtime and id when the service lives in a container
    problem: str = ""  # one line; empty when the service can be driven
    digest: str = ""  # sha256 of what defines the launch (unit + drop-ins, or record), to notice a move
    differs: list[str] = field(default_factory=list)  # what runs, where that is not what a start would give
    other_code: str = ""  # how the code that it imports is another than that of the host's `python`
    warnings: list[str] = field(default_factory=list)  # what cannot be known of it, and the like
    not_live: list[str] = field(default_factory=list)  # what of the live release it does not show; if asked
    untold: list[str] = field(default_factory=list)  # what of that cannot be said
    dependents: list[str] = field(default_factory=list)  # units that run, and go down with it
    conflicting: list[str] = field(default_factory=list)  # units that run, and go down when it is started
    stop_takes_s: float = 0.0  # as long its manager lets it take to end; 0: not known; under 0: any time

    def not_in_effect(self) -> str:
        """What runs otherwise than a start would give now, in words; "" for nothing."""
        text = f"what runs is not what a start would give now: {'; '.join(self.differs)}"
        return text if self.differs else ""

    def short_limit(self, limit_s: float) -> str:
        """Why a stop within `limit_s` is not sure, in words; "" where nothing is known against it."""
        if 0 <= self.stop_takes_s <= limit_s:
            return ""
        own = "infinity" if self.stop_takes_s < 0 else f"{self.stop_takes_s:g}s"
        return (
            f"stop.limit is {limit_s:g} s, but the unit may take longer to end (TimeoutStopSec={own}); a "
            "stop that runs into the limit is undone, and the undo waits for as long as the unit takes"
        )


@dataclass(frozen=True)
class Process:
    pid: int
    command: str  # masked, at most 200 characters


@dataclass(frozen=True)
class Release:
    """One line of releases.jsonl."""

    run: str
    time: str
    who: str
    action: str  # rollout | rollback
    payload: str
    version: str
    variant: str
    digest: str  # of the installed state
    verdict: str  # good | bad | rolled-back | held
    previous: str = ""  # the release that was live before; "" = none of ours


@dataclass(frozen=True)
class Kept:
    """A release in the line of the live one whose backup is kept: it can be gone behind."""

    run: str
    previous: str  # the release that it found; "" = none of ours
    paths: dict[str, str]  # path -> ref, of what it changed


@dataclass(frozen=True)
class LockFacts:
    held: bool = False
    run: str = ""
    who: str = ""
    pid: int = 0
    since: str = ""
    step: str = ""
    state_dir: str = ""  # of the holder, where it is not that of the host entry
    elsewhere: bool = False  # the holder is no run in this state folder


@dataclass(frozen=True)
class Facts:
    protocol: int
    hostname: str
    user: str
    uid: int
    home: str
    os: str
    kernel: str
    boot_id: str
    python: str  # sys.executable, absolute, not resolved through the venv's symlink
    python_version: list[int]
    site: str  # real path of purelib
    site_key: str
    site_dir: str  # state folder of this venv: STATE/sites/KEY
    state_free_bytes: int
    site_free_bytes: int
    packages: dict[str, Package]  # of sglang, torch, sglang-kernel, sgl-kernel, triton, ...: those present
    files: dict[str, FileState]  # by ref, for all refs asked
    installed: dict[str, Any] | None  # installed.json
    installed_files: dict[str, FileState]  # by absolute path, for all files in installed.json
    releases: list[Release]  # the newest 20 and those of the line of the live one, oldest first
    lock: LockFacts
    orphan: LockFacts | None  # a run that ended without a verdict and must be recovered first
    gpus: list[Gpu]
    processes: list[Process]  # that use this venv, other than the service's own
    service: ServiceFacts | None
    systemd: bool  # PID 1 is systemd
    bases: list[str] = field(default_factory=list)  # digests kept in bases/
    warnings: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)  # the live release first, then what it replaced, ...
    base: list[Kept] = field(default_factory=list)  # what leads to before the first; empty: nothing does
    base_contents: dict[str, str] = field(default_factory=dict)  # digest -> zlib + base64, when asked for
    driver: str = ""  # NVIDIA's kernel module
    cuda: str = ""  # that torch was built for
    pip_freeze: list[str] = field(
        default_factory=list
    )  # name==version of every distribution in site-packages
    attempts: dict[str, str] = field(default_factory=dict)  # digest -> "bad" for releases marked bad


def packed(data: bytes) -> str:
    """zlib + base64, as contents and facts travel."""
    return base64.b64encode(zlib.compress(data)).decode()


def unpacked(word: str | bytes) -> bytes:
    """What `packed` was given, of at most `LIMIT` bytes. Raises ValueError."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(base64.b64decode(word, validate=True), LIMIT)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof:
        raise ValueError(f"cut off, or more than {LIMIT} bytes")
    return data


def pack(facts: Facts) -> str:
    """Facts as one word, short enough for one round trip, in letters that no terminal or shell changes."""
    return packed(json.dumps(to_dict(facts)).encode())


def unpack(word: bytes) -> Facts:
    """The facts that `pack` was given. Raises ProtocolError."""
    try:
        raw = json.loads(unpacked(word))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"facts: {error}") from None
    facts: Facts = from_dict(Facts, raw, "facts")
    return facts
