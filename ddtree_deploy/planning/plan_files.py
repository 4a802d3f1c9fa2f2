"""Files of a plan: what is wanted beside what is live, what has to go, what a rollback restores. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ddtree_deploy.errors import DriftError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Item, Variant
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.onhost.wire.protocol import FileState, Target
from ddtree_deploy.planning.changes import FileChange, content_of, diff
from ddtree_deploy.planning.drift import Live, check, identity, in_words, live, owned
from ddtree_deploy.planning.variants import file_state


@dataclass(frozen=True)
class Wanted:
    """An item of the variant beside what is live."""

    item: Item
    file: FileState
    live: Live
    mode: int

    @classmethod
    def of(cls, item: Item, facts: Facts) -> Wanted:
        file = file_state(facts, item.ref)
        # An upstream file keeps its mode; ours are plain files.
        mode = file.mode & 0o7777 if item.base_sha256 and file.kind == "file" else 0o644
        return cls(item, file, live(item.ref, file, item.base_sha256, facts), mode)

    @property
    def differs(self) -> bool:
        same = self.file.kind == "file" and self.file.sha256 == self.item.sha256
        return not same or self.file.mode & 0o7777 != self.mode

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

    def change(self, facts: Facts) -> FileChange:
        kind = "patched" if self.item.kind == "patch" else "replaced"
        kind = "new" if self.file.kind == "absent" else kind
        kind = kind if self.differs or self.live.state == "foreign" else "unchanged"
        text = "" if kind == "unchanged" else _item_diff(self)
        return FileChange(self.item.ref, self.file.path, kind, _live_words(self.live, facts), text)


@dataclass(frozen=True)
class Gone:
    """A file of the installed release that the new one does not have."""

    live: Live
    target: Target
    change: FileChange


def gone(facts: Facts, kept: set[str]) -> list[Gone]:
    found = []
    for path, own in sorted(owned(facts).items()):
        file = facts.installed_files.get(path, FileState(path, "absent"))
        base = str(own.get("base_sha256", ""))
        state = live(own["ref"], file, base, facts)
        if path in kept or (state.state == "base"):
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
            _live_words(state, facts),
            "" if base or old is None else diff(own["ref"], old, b""),
        )
        found.append(Gone(state, target, change))
    return found


def check_bases(host: Host, facts: Facts, wanted: list[Wanted], stale: list[Gone]) -> None:
    """What needs a pristine upstream file can have it: it is live, or it was kept."""
    lost = [
        w.item.ref
        for w in wanted
        if w.item.kind == "patch"
        and w.differs
        and identity(w.file) != w.item.base_sha256
        and w.item.base_sha256 not in facts.bases
    ]
    lost += [
        g.target.ref for g in stale if g.target.source == "base" and g.target.base_sha256 not in facts.bases
    ]
    if lost:
        raise DriftError(
            f"the upstream content of {', '.join(lost)} is neither live nor kept on the host: it cannot be "
            "patched or restored",
            stage="plan",
            host=host.name,
            state="nothing was touched",
            next_command="install SGLang's own files again on the host, then the same command",
        )


def check_folders(host: Host, facts: Facts, variant: Variant) -> None:
    """No folder on the way to a file of ours is a link or a file: that would lead somewhere else."""
    for ref in sorted({str(p) for i in variant.items for p in PurePosixPath(i.ref).parents if str(p) != "."}):
        state = facts.files.get(ref)
        if state is not None and state.kind not in ("dir", "absent"):
            found = f"a symbolic link to {state.link}" if state.kind == "symlink" else f"a {state.kind}"
            raise DriftError(
                f"{ref} should be a folder, but is {found}",
                stage="plan",
                host=host.name,
                state="nothing was touched",
                next_command=f"move {state.path} out of the way on the host, then the same command",
            )


def _item_diff(wanted: Wanted) -> str:
    """The patch itself where the base is live, else old against new; "" where a side is not at hand."""
    if wanted.item.kind == "patch":
        return wanted.item.data.decode("utf-8", "replace")
    old = b"" if wanted.file.kind == "absent" else content_of(wanted.file)
    if old is None:
        return ""
    return diff(wanted.item.ref, old, wanted.item.data)


def restores(
    host: Host, facts: Facts, sources: Mapping[str, tuple[str, str]], accept: bool
) -> tuple[list[Target], list[FileChange]]:
    """Every path of `sources` (path -> (run, ref)), to be as the backup of that run recorded it."""
    files = owned(facts)
    lives, targets, changes = [], [], []
    for path, (run, ref) in sorted(sources.items(), key=lambda item: item[1][1]):
        expected = str(files[path]["sha256"]) if path in files else ""
        file = facts.installed_files.get(path, FileState(path, "absent"))
        sha = identity(file)
        state = Live(
            ref,
            path,
            # What is not ours any more was removed, or is one of the upstream files that we keep.
            "ours" if sha == expected or (path not in files and sha in facts.bases) else "foreign",
            sha,
            f"ours {expected[:12]}" if expected else "nothing",
            in_words(file),
            file.kind in ("dir", "other"),
        )
        lives.append(state)
        mode = int(files[path].get("mode", 0o644)) if path in files else 0o644
        targets.append(Target(path, ref, f"backup:{run}", "?", sha, mode=mode))
        changes.append(FileChange(ref, path, "restored", _live_words(state, facts), ""))
    check(host.name, lives, accept, orphan=facts.orphan.run if facts.orphan else "")
    return targets, changes


def _live_words(state: Live, facts: Facts) -> str:
    if state.state == "ours":
        return f"ours, {(facts.installed or {}).get('release', '?')}"
    if state.state == "foreign":
        return f"foreign, {state.found}"
    return "base" if state.sha256 else "absent"
