"""Every live file that a release is about: base, ours or foreign, with what differs. Pure."""

from __future__ import annotations

import base64
import contextlib
import zlib
from dataclasses import dataclass

from ddtree_deploy.inputs.payload import Item, Payload
from ddtree_deploy.onhost.staging import patch
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.onhost.wire.protocol import FileState
from ddtree_deploy.planning import drift
from ddtree_deploy.planning.changes import content_of, diff
from ddtree_deploy.planning.drift import Live
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


def live_files(facts: Facts, payload: Payload | None) -> list[tuple[Live, FileState]]:
    """Every path that the installed release or the payload's fitting variant is about, by ref."""
    items = items_of(facts, payload)
    found: dict[str, tuple[Live, FileState]] = {}
    for ref, item in items.items():
        state = facts.files.get(ref)
        if state is not None:
            found[state.path] = drift.live(ref, state, item.base_sha256, facts), state
    for path, own in drift.owned(facts).items():
        state = facts.installed_files.get(path)
        if state is not None and path not in found:
            live = drift.live(str(own["ref"]), state, str(own.get("base_sha256", "")), facts)
            found[path] = live, state
    return sorted(found.values(), key=lambda pair: pair[0].ref)


def items_of(facts: Facts, payload: Payload | None) -> dict[str, Item]:
    """Ref -> item, of the payload's variants that fit the host's SGLang."""
    package = facts.packages.get("sglang")
    variants = [v for v in payload.variants if package and package.version in v.sglang] if payload else []
    return {item.ref: item for v in variants for item in v.items}


def report(facts: Facts, payload: Payload | None) -> list[LiveFile]:
    """What `drift` says. The facts must have been asked for contents."""
    release = str((facts.installed or {}).get("release", ""))
    known = _known(facts, payload)
    found = []
    for live, state in live_files(facts, payload):
        own = drift.owned(facts).get(live.path)
        base = str(own.get("base_sha256", "")) if own else ""
        item = items_of(facts, payload).get(live.ref)
        base = base or (item.base_sha256 if item else "")
        text, why = "", ""
        expected, there = live.expected, live.found
        moved = live.state == "foreign" or (live.state == "base" and own is not None)
        if own is not None and live.state == "base":
            expected, there = f"ours {own['sha256'][:12]}", drift.in_words(state)
        if live.state == "ours":
            text, why = _difference(live.ref, "upstream", known.get(base), content_of(state))
        elif moved:
            wanted = known.get(str(own["sha256"]) if own else base)
            text, why = _difference(live.ref, "expected", wanted, content_of(state))
        found.append(
            LiveFile(
                live.ref,
                live.path,
                live.state,
                release if live.state == "ours" else "",
                expected,
                there,
                text,
                why,
                moved,
            )
        )
    return found


def _known(facts: Facts, payload: Payload | None) -> dict[str, bytes]:
    """Digest -> content, of all that is at hand: kept bases, the payload, live files. "" is nothing."""
    known = {"": b""}
    for digest, packed in facts.base_contents.items():
        known[digest] = zlib.decompress(base64.b64decode(packed))
    for state in (*facts.files.values(), *facts.installed_files.values()):
        data = content_of(state)
        if data is not None:
            known[state.sha256] = data
    for item in items_of(facts, payload).values():
        if item.kind != "patch":
            known[item.sha256] = item.data
        elif item.base_sha256 in known:
            with contextlib.suppress(patch.PatchError):  # said where it matters: when it is to be installed
                known[item.sha256] = patch.apply(known[item.base_sha256], item.data)
    return known


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
