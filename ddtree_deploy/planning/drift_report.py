"""Every live file that a release is about: base, ours or foreign, with what differs. Pure."""

from __future__ import annotations

import base64
import contextlib
import zlib
from dataclasses import dataclass

from ddtree_deploy.inputs.payload import Item, Payload
from ddtree_deploy.onhost.staging import patch
from ddtree_deploy.onhost.wire.protocol import FileState
from ddtree_deploy.planning import drift
from ddtree_deploy.planning.changes import content_of, diff
from ddtree_deploy.planning.drift import Live
from ddtree_deploy.planning.known import PACKAGE, Known
from ddtree_deploy.text import safe


@dataclass(frozen=True)
class LiveFile:
    """`diff`: from upstream's (or nothing) to ours; of a foreign file from the expected to what is there."""

    ref: str
    path: str
    state: str  # base | ours | foreign
    release: str = ""  # ours: of which release
    expected: str = ""  # foreign: in words
    found: str = ""
    diff: str = ""  # unified; empty where a side is not at hand
    no_diff: str = ""  # why not
    moved: bool = False  # foreign; or upstream's again, where the live release has put ours


def live_files(known: Known, payload: Payload | None) -> list[tuple[Live, FileState]]:
    """Every path that the installed release or the payload's fitting variant is about, by ref."""
    items = items_of(known, payload)
    found: dict[str, tuple[Live, FileState]] = {}
    for ref, item in items.items():
        state = known.facts.files.get(ref)
        if state is not None:
            found[state.path] = drift.live(known, ref, state, item.base_sha256), state
    for path, own in known.owned.items():
        state = known.facts.installed_files.get(path)
        if state is not None and path not in found:
            live = drift.live(known, str(own["ref"]), state, str(own.get("base_sha256", "")))
            found[path] = live, state
    return sorted(found.values(), key=lambda pair: pair[0].ref)


def items_of(known: Known, payload: Payload | None) -> dict[str, Item]:
    """Ref -> item, of the payload's variants that fit the host's SGLang."""
    package = known.facts.packages.get(PACKAGE)
    variants = [v for v in payload.variants if package and package.version in v.sglang] if payload else []
    return {item.ref: item for v in variants for item in v.items}


def report(known: Known, payload: Payload | None) -> list[LiveFile]:
    """What `drift` says. The facts must have been asked for contents."""
    contents = _contents(known, payload)
    items = items_of(known, payload)
    found = []
    for live, state in live_files(known, payload):
        own = known.owned.get(live.path)
        base = str(own.get("base_sha256", "")) if own else ""
        item = items.get(live.ref)
        base = base or (item.base_sha256 if item else "")
        text, why = "", ""
        expected, there = live.expected, live.found
        moved = live.state == "foreign" or (live.state == "base" and own is not None)
        if own is not None and live.state == "base":
            expected, there = f"ours {own['sha256'][:12]}", drift.in_words(state)
        if live.state == "ours":
            text, why = _difference(live.ref, "upstream", contents.get(base), content_of(state))
        elif moved:
            wanted = contents.get(str(own["sha256"]) if own else base)
            text, why = _difference(live.ref, "expected", wanted, content_of(state))
        found.append(
            LiveFile(
                live.ref,
                live.path,
                live.state,
                known.live if live.state == "ours" else "",
                expected,
                there,
                text,
                why,
                moved,
            )
        )
    return found


def _contents(known: Known, payload: Payload | None) -> dict[str, bytes]:
    """Digest -> content, of all that is at hand: kept bases, the payload, live files. "" is nothing."""
    facts, found = known.facts, {"": b""}
    for digest, packed in facts.base_contents.items():
        found[digest] = zlib.decompress(base64.b64decode(packed))
    for state in (*facts.files.values(), *facts.installed_files.values()):
        data = content_of(state)
        if data is not None:
            found[state.sha256] = data
    for item in items_of(known, payload).values():
        if item.kind != "patch":
            found[item.sha256] = item.data
        elif item.base_sha256 in found:
            with contextlib.suppress(patch.PatchError):  # said where it matters: when it is to be installed
                found[item.sha256] = patch.apply(found[item.base_sha256], item.data)
    return found


def _difference(ref: str, name: str, old: bytes | None, new: bytes | None) -> tuple[str, str]:
    if new is None:
        return "", "the live content is not at hand (no file, or larger than 1 MiB)"
    if old is None:
        return "", f"the {name} content is not at hand"
    return diff(ref, old, new, (name, "live")), ""


def lines_of(host: str, files: list[LiveFile], *, diffs: bool = True) -> list[str]:
    """For people. Diffs of our own files are counted only; of those that have moved shown."""
    states = [f.state for f in files]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("base", "ours", "foreign") if s in states)
    lines = [f"{host}: {counts or 'no file to look at'}"]
    for file in files:
        note = f"release {file.release}" if file.state == "ours" else ""
        note = f"expected {file.expected}, found {file.found}" if file.moved else note
        changed = [line for line in file.diff.splitlines()[2:] if line[:1] in "+-"]
        count = f"; {len(changed)} lines differ from upstream" if file.state == "ours" and file.diff else ""
        lines.append(f"  {file.state:<8} {file.ref}  {note}{count}".rstrip())
        if file.moved and diffs:
            lines += [f"    {line}" for line in file.diff.splitlines()] or [f"    no diff: {file.no_diff}"]
    return [safe(line) for line in lines]
