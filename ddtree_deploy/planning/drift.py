"""What a live file is: base (as upstream, or absent), ours (as a rollout left it), or foreign. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_deploy.errors import DriftError
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.onhost.wire.protocol import FileState


@dataclass(frozen=True)
class Live:
    """A live path beside what was expected there."""

    ref: str
    path: str
    state: str  # base | ours | foreign
    sha256: str  # identity of what is there; "" = nothing
    expected: str = ""  # in words; for foreign ones
    found: str = ""
    hopeless: bool = False  # not even --accept-drift can go on: a folder or a device is there

    def line(self) -> str:
        """`sglang:srt/x.py (expected ..., found ...)`."""
        return f"{self.ref} (expected {self.expected}, found {self.found})"


def identity(file: FileState) -> str:
    """Empty for nothing, sha256 of a file's bytes or of `symlink:TARGET`, else the kind; as on the host."""
    if file.kind == "absent":
        return ""
    if file.kind == "symlink":
        return file.sha256 or hashlib.sha256(b"symlink:" + os.fsencode(file.link)).hexdigest()
    return file.sha256 or file.kind


def owned(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """Path -> {sha256, mode, ref, base_sha256} of the files of the installed release."""
    files: Mapping[str, Mapping[str, Any]] = (facts.installed or {}).get("files", {})
    return files


def live(ref: str, file: FileState, base_sha256: str, facts: Facts) -> Live:
    """Judge one path. base_sha256: of the upstream file there; "" = upstream has none."""
    own = owned(facts).get(file.path)
    sha = identity(file)
    if own is not None and file.kind == "file" and sha == own["sha256"]:
        return Live(ref, file.path, "ours", sha)
    if (file.kind == "absent" and not base_sha256) or (file.kind == "file" and sha == base_sha256):
        return Live(ref, file.path, "base", sha)
    expected = f"upstream {base_sha256[:12]}" if base_sha256 else "nothing"
    if own is not None:
        expected = f"ours {own['sha256'][:12]}" + (f" or {expected}" if base_sha256 else "")
    return Live(ref, file.path, "foreign", sha, expected, in_words(file), file.kind in ("dir", "other"))


def in_words(file: FileState) -> str:
    """What is there, for people."""
    return {
        "absent": "nothing",
        "symlink": f"a symbolic link to {file.link}",
        "dir": "a folder",
        "file": f"{identity(file)[:12]}",
    }.get(file.kind, "a device or socket")


def check(host: str, lives: list[Live], accept: bool, *, orphan: str = "") -> list[Live]:
    """The foreign ones, if they are accepted. Raises DriftError listing them if not.

    orphan: a run that died half-way; then it is the likely reason, and has to be recovered first.
    """
    foreign = [item for item in lives if item.state == "foreign"]
    stuck = [item for item in foreign if item.hopeless]
    if stuck:
        what = "path" if len(stuck) == 1 else "paths"
        raise DriftError(
            f"{len(stuck)} {what} cannot be replaced: {'; '.join(i.line() for i in stuck)}",
            stage="plan",
            host=host,
            state="nothing was touched",
            next_command="move what is there out of the way on the host, then the same command again",
        )
    if foreign and not accept and orphan:
        raise DriftError(
            f"{len(foreign)} live {_paths(foreign)} half-way: run {orphan} ended without a verdict",
            stage="plan",
            host=host,
            state="nothing was touched",
            next_command=f"ddtree-deploy recover {host}",
        )
    if foreign and not accept:
        raise DriftError(
            f"{len(foreign)} live {_paths(foreign)} neither upstream's nor ours: "
            f"{'; '.join(i.line() for i in foreign)}; --accept-drift takes them into the backup and goes on",
            stage="plan",
            host=host,
            state="nothing was touched",
            next_command=f"ddtree-deploy drift {host}",
        )
    return foreign


def _paths(items: list[Live]) -> str:
    return "file is" if len(items) == 1 else "files are"
