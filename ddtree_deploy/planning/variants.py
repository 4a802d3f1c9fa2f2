"""Which variant of a payload fits a host. Pure."""

from __future__ import annotations

from ddtree_deploy.errors import DriftError
from ddtree_deploy.inputs.payload import Payload, Variant
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.onhost.wire.protocol import FileState
from ddtree_deploy.planning.drift import live, owned

PACKAGE = "sglang"


def sglang_version(host: str, facts: Facts) -> str:
    """The installed version. Raises DriftError if there is none."""
    package = facts.packages.get(PACKAGE)
    if package is None:
        raise DriftError(
            f"SGLang is not installed in the venv of {facts.python}",
            stage="plan",
            host=host,
            state="nothing was touched",
            next_command=f"correct `python:` of {host} in hosts.yaml",
        )
    return package.version


def choose(host: str, facts: Facts, payload: Payload) -> Variant:
    """The first variant for this SGLang whose overlays were made against the host's files.

    If the version fits but no variant's base files do, the first for the version: its drift is reported file
    by file. Raises DriftError if no variant is for this version.
    """
    version = sglang_version(host, facts)
    fitting = [variant for variant in payload.variants if version in variant.sglang]
    if not fitting:
        known = "; ".join(f"{v.name}: {', '.join(v.sglang)}" for v in payload.variants)
        raise DriftError(
            f"no variant of {payload.name} {payload.version} is for SGLang {version} (there are: {known})",
            stage="plan",
            host=host,
            state="nothing was touched",
            next_command="add a variant to payload.yaml, or install one of these SGLang versions on the host",
        )
    return next((v for v in fitting if all(_fits(v, i, facts) for i in range(len(v.overlays)))), fitting[0])


def _fits(variant: Variant, index: int, facts: Facts) -> bool:
    """The overlay's base is what is there, or what was there before we replaced it."""
    item = variant.overlays[index]
    file = file_state(facts, item.ref)
    state = live(item.ref, file, item.base_sha256, facts)
    if state.state == "ours":
        return bool(owned(facts)[file.path].get("base_sha256") == item.base_sha256)
    return state.state == "base"


def file_state(facts: Facts, ref: str) -> FileState:
    """What the host said about `ref`. Raises DriftError if it said nothing: then the plan cannot be made."""
    try:
        return facts.files[ref]
    except KeyError:
        raise DriftError(
            f"the host did not say what {ref} is", stage="plan", state="nothing was touched"
        ) from None
