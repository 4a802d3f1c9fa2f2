"""What a live file is: base (as upstream, or absent), ours (as a rollout left it), or foreign. Pure."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from ddtree_deploy.onhost.wire.protocol import FileState
from ddtree_deploy.planning.known import Known


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


def live(known: Known, ref: str, file: FileState, base_sha256: str) -> Live:
    """Judge one path. base_sha256: of the upstream file there; "" = upstream has none."""
    own = known.owned.get(file.path)
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


def check(known: Known, lives: list[Live], accept: bool) -> list[Live]:
    """The foreign ones, if they are accepted. Raises DriftError listing them if not.

    A run that died half-way is then the likely reason, and has to be recovered first.
    """
    foreign = [item for item in lives if item.state == "foreign"]
    stuck = [item for item in foreign if item.hopeless]
    if stuck:
        what = "path" if len(stuck) == 1 else "paths"
        raise known.drift(
            f"{len(stuck)} {what} cannot be replaced: {'; '.join(i.line() for i in stuck)}",
            "move what is there out of the way on the host, then the same command again",
        )
    are = f"{len(foreign)} live {'file is' if len(foreign) == 1 else 'files are'}"
    if foreign and not accept and known.facts.orphan:
        raise known.drift(
            f"{are} half-way: run {known.facts.orphan.run} ended without a verdict",
            f"ddtree-deploy recover {known.name}",
        )
    if foreign and not accept:
        raise known.drift(
            f"{are} neither upstream's nor ours: "
            f"{'; '.join(i.line() for i in foreign)}; --accept-drift takes them into the backup and goes on",
            f"ddtree-deploy drift {known.name}",
        )
    return foreign
