"""Every live file that a release is about: base, ours or foreign, with what differs. Pure."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any

from ddtree_deploy.inputs.payload import Item, Payload
from ddtree_deploy.onhost.staging import patch
from ddtree_deploy.onhost.wire.facts import unpacked
from ddtree_deploy.onhost.wire.protocol import FileState
from ddtree_deploy.planning import drift
from ddtree_deploy.planning.changes import content_of, diff
from ddtree_deploy.planning.drift import Live
from ddtree_deploy.planning.known import PACKAGE, Known
from ddtree_deploy.text import safe


@dataclass(frozen=True)
class LiveFile(Live):
    """`diff`: from upstream's (or nothing) to ours; of a foreign file from the expected to what is there."""

    release: str = ""  # ours: of which release
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
        own, item = known.owned.get(live.path), items.get(live.ref)
        base = str(own.get("base_sha256", "")) if own else ""
        base = base or (item.base_sha256 if item else "")
        more: dict[str, Any] = {}
        if live.state == "ours":
            more = _difference(live.ref, "upstream", contents.get(base), content_of(state))
            more["release"] = known.live
        elif live.state == "foreign" or own is not None:
            wanted = contents.get(str(own["sha256"]) if own else base)
            more = {"moved": True, **_difference(live.ref, "expected", wanted, content_of(state))}
        if own is not None and live.state == "base":
            more |= {"expected": f"ours {own['sha256'][:12]}", "found": drift.in_words(state)}
        found.append(LiveFile(**{**asdict(live), **more}))
    return found


def _contents(known: Known, payload: Payload | None) -> dict[str, bytes]:
    """Digest -> content, of all that is at hand: kept bases, the payload, live files. "" is nothing."""
    facts, found = known.facts, {"": b""}
    for digest, packed in facts.base_contents.items():
        found[digest] = unpacked(packed)
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


def _difference(ref: str, name: str, old: bytes | None, new: bytes | None) -> dict[str, Any]:
    if new is None:
        return {"no_diff": "the live content is not at hand (no file, or larger than 1 MiB)"}
    if old is None:
        return {"no_diff": f"the {name} content is not at hand"}
    return {"diff": diff(ref, old, new, (name, "live"))}


def counted(states: list[str]) -> str:
    """`2 base, 3 ours`; "" for none."""
    return ", ".join(f"{states.count(s)} {s}" for s in ("base", "ours", "foreign") if s in states)


def lines_of(host: str, files: list[LiveFile]) -> list[str]:
    """For people. Diffs of our own files are counted only; of those that have moved shown."""
    lines = [f"{host}: {counted([f.state for f in files]) or 'no file to look at'}"]
    for file in files:
        note = f"release {file.release}" if file.state == "ours" else ""
        note = f"expected {file.expected}, found {file.found}" if file.moved else note
        changed = [line for line in file.diff.splitlines()[2:] if line[:1] in "+-"]
        count = f"; {len(changed)} lines differ from upstream" if file.state == "ours" and file.diff else ""
        lines.append(f"  {file.state:<8} {file.ref}  {note}{count}".rstrip())
        if file.moved:
            lines += [f"    {line}" for line in file.diff.splitlines()] or [f"    no diff: {file.no_diff}"]
    return [safe(line) for line in lines]


def service_lines(differs: list[str], not_live: list[str], untold: list[str]) -> list[str]:
    """Where what runs is not the live release, or not what a start would give; and what nobody can tell."""
    lines = [f"  differs  {text}" for text in [*not_live, *differs]] + [
        f"  not told {text}" for text in untold
    ]
    return [safe(line) for line in lines]
