"""Which variant of a payload fits a host. Pure."""

from __future__ import annotations

from ddtree_deploy.inputs.payload import Item, Payload, Variant
from ddtree_deploy.planning.drift import live
from ddtree_deploy.planning.known import Known


def choose(known: Known, payload: Payload) -> Variant:
    """The first variant for this SGLang whose overlays were made against the host's files.

    If the version fits but no variant's base files do, the first for the version: its drift is reported file
    by file. Raises DriftError if no variant is for this version.
    """
    version = known.sglang
    fitting = [variant for variant in payload.variants if version in variant.sglang]
    if not fitting:
        there = "; ".join(f"{v.name}: {', '.join(v.sglang)}" for v in payload.variants)
        raise known.drift(
            f"no variant of {payload.name} {payload.version} is for SGLang {version} (there are: {there})",
            "add a variant to payload.yaml, or install one of these SGLang versions on the host",
        )
    return next((v for v in fitting if all(_fits(known, item) for item in v.overlays)), fitting[0])


def _fits(known: Known, overlay: Item) -> bool:
    """The overlay's base is what is there, or what was there before we replaced it."""
    file = known.file(overlay.ref)
    state = live(known, overlay.ref, file, overlay.base_sha256)
    if state.state == "ours":
        return bool(known.owned[file.path].get("base_sha256") == overlay.base_sha256)
    return state.state == "base"
