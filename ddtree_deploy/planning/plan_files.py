"""Files of a plan: what is wanted beside what is live, what has to go, what a rollback restores. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.payload import Item, Variant
from ddtree_deploy.onhost.wire.protocol import FileState, Target
from ddtree_deploy.planning.changes import FileChange, content_of, diff
from ddtree_deploy.planning.drift import Live, check, identity, in_words, live
from ddtree_deploy.planning.known import Known


@dataclass(frozen=True)
class PlannedFile:
    """An item of the variant beside what is live."""

    item: Item
    file: FileState
    live: Live
    mode: int

    @classmethod
    def of(cls, known: Known, item: Item) -> PlannedFile:
        file = known.file(item.ref)
        mode = 0o755 if item.executable else 0o644
        if item.base_sha256 and file.kind == "file":  # an upstream file keeps its mode
            mode = file.mode & 0o7777
            if item.executable and not mode & 0o111:
                raise InputError(
                    f"{item.origin} is executable, and {item.ref}, which it replaces, is not: what "
                    "replaces a file of SGLang's gets its mode",
                    host=known.name,
                    stage="plan",
                    next_command=f"chmod -x {item.origin}, in the payload",
                )
        return cls(item, file, live(known, item.ref, file, item.base_sha256), mode)

    @property
    def differs(self) -> bool:
        same = self.file.kind == "file" and self.file.sha256 == self.item.sha256
        return not same or self.file.mode & 0o7777 != self.mode

    @property
    def changed(self) -> bool:
        """Also a foreign file that has the wanted content: it goes into the backup."""
        return self.differs or self.live.state == "foreign"

    def target(self) -> Target:
        source = f"{'patch' if self.item.kind == 'patch' else 'blob'}:{self.item.blob}"
        return Target(
            path=self.file.path,
            ref=self.item.ref,
            source=source,
            sha256=self.item.sha256,
            before=identity(self.file),
            base_sha256=self.item.base_sha256,
            mode=self.mode,
        )

    def change(self, known: Known) -> FileChange:
        kind = "patched" if self.item.kind == "patch" else "replaced"
        kind = "new" if self.file.kind == "absent" else kind
        kind = kind if self.changed else "unchanged"
        text = self._diff() if self.changed else ""
        return FileChange(self.item.ref, self.file.path, kind, _live_words(known, self.live), text)

    def _diff(self) -> str:
        """The patch itself where the base is live, else old against new; "" where a side is not at hand."""
        if self.item.kind == "patch":
            return self.item.data.decode("utf-8", "replace")
        old = b"" if self.file.kind == "absent" else content_of(self.file)
        return "" if old is None else diff(self.item.ref, old, self.item.data)


@dataclass(frozen=True)
class Gone:
    """A file of the installed release that the new one does not have."""

    live: Live
    target: Target
    change: FileChange


def gone(known: Known, kept: set[str]) -> list[Gone]:
    """What of the installed release has to go; `kept` are the paths of the new one."""
    found = []
    for path, own in sorted(known.owned.items()):
        file = known.installed_file(path)
        base = str(own.get("base_sha256", ""))
        state = live(known, own["ref"], file, base)
        if path in kept or state.state == "base":
            continue
        target = Target(
            path=path,
            ref=own["ref"],
            source="base" if base else "absent",
            sha256=base,
            before=state.sha256,
            base_sha256=base,
            mode=int(own.get("mode", 0o644)),
        )
        old = content_of(file)
        change = FileChange(
            own["ref"],
            path,
            "restored" if base else "removed",
            _live_words(known, state),
            "" if base or old is None else diff(own["ref"], old, b""),
        )
        found.append(Gone(state, target, change))
    return found


def check_bases(known: Known, wanted: list[PlannedFile], stale: list[Gone]) -> None:
    """What needs a pristine upstream file can have it: it is live, or it was kept."""
    needed = [
        (w.item.ref, w.item.base_sha256)
        for w in wanted
        if w.item.kind == "patch" and w.differs and identity(w.file) != w.item.base_sha256
    ]
    needed += [(g.target.ref, g.target.base_sha256) for g in stale if g.target.source == "base"]
    lost = [ref for ref, base in needed if base not in known.facts.bases]
    if lost:
        raise known.drift(
            f"the upstream content of {', '.join(lost)} is neither live nor kept on the host: it cannot be "
            "patched or restored",
            "install SGLang's own files again on the host, then the same command",
        )


def check_folders(known: Known, variant: Variant) -> None:
    """No folder on the way to a file of ours is a link or a file: that would lead somewhere else."""
    for ref in sorted({str(p) for i in variant.items for p in PurePosixPath(i.ref).parents if str(p) != "."}):
        state = known.facts.files.get(ref)
        if state is not None and state.kind not in ("dir", "absent"):
            found = f"a symbolic link to {state.link}" if state.kind == "symlink" else f"a {state.kind}"
            raise known.drift(
                f"{ref} should be a folder, but is {found}",
                f"move {state.path} out of the way on the host, then the same command",
            )


def restores(
    known: Known, sources: Mapping[str, tuple[str, str]], accept: bool
) -> tuple[list[Target], list[FileChange]]:
    """Every path of `sources` (path -> (run, ref)), to be as the backup of that run recorded it."""
    lives, targets, changes = [], [], []
    for path, (run, ref) in sorted(sources.items(), key=lambda item: item[1][1]):
        own = known.owned.get(path, {})
        expected = str(own.get("sha256", ""))
        file = known.installed_file(path)
        sha = identity(file)
        state = Live(
            ref,
            path,
            # What is not ours any more was removed, or is one of the upstream files that we keep.
            "ours" if sha == expected or (not own and sha in known.facts.bases) else "foreign",
            sha,
            f"ours {expected[:12]}" if expected else "nothing",
            in_words(file),
            file.kind in ("dir", "other"),
        )
        lives.append(state)
        mode = int(own.get("mode", 0o644))
        targets.append(Target(path, ref, f"backup:{run}", "?", sha, mode=mode))
        changes.append(FileChange(ref, path, "restored", _live_words(known, state), ""))
    check(known, lives, accept)
    return targets, changes


def _live_words(known: Known, state: Live) -> str:
    if state.state == "ours":
        return f"ours, {known.live or '?'}"
    if state.state == "foreign":
        return f"foreign, {state.found}"
    return "base" if state.sha256 else "absent"
