"""What a server says of itself, against what its launch asks for. Pure.

SGLang names a field of /server_info after its flag, and gives the value as its parser typed it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

SAME, OTHER, UNKNOWN = "same", "other", "unknown"
# Flags whose field has another name. Those of 0.5.23; what is not here and has no field is unknown.
_FIELDS = {
    "model": "model_path",
    "tp": "tp_size",
    "tensor-parallel-size": "tp_size",
    "pp": "pp_size",
    "pipeline-parallel-size": "pp_size",
    "dp": "dp_size",
    "data-parallel-size": "dp_size",
    "ep": "ep_size",
    "expert-parallel-size": "ep_size",
    "attention-data-parallel-size": "attn_dp_size",
    "attention-context-parallel-size": "attn_cp_size",
    "moe-data-parallel-size": "moe_dp_size",
    "decode-context-parallel-size": "dcp_size",
    "nccl-init-addr": "dist_init_addr",
    "speculative-draft-model": "speculative_draft_model_path",
    "enable-hicache": "enable_hierarchical_cache",
    "fp8-gemm-backend": "fp8_gemm_runner_backend",
    "fp4-gemm-backend": "fp4_gemm_runner_backend",
}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_ABSENT = object()


def flag(info: Mapping[str, Any], name: str, value: str | None) -> tuple[str, Any]:
    """(same | other | unknown, what the server tells) of one flag; `value` None: one without a value."""
    told = info.get(_field(name), _ABSENT)
    if value is None:
        if told is _ABSENT and name.startswith("no-") and isinstance(info.get(_field(name[3:])), bool):
            told = not info[_field(name[3:])]
        if told is _ABSENT or not (told is None or isinstance(told, bool)):
            return UNKNOWN, told  # what an option is that may go without a value, its parser knows
        return SAME if told else OTHER, told
    if name == "speculative-algorithm" and isinstance(told, str):  # the one that SGLang rewrites
        told, value = told.upper(), {"NEXTN": "EAGLE"}.get(value.upper(), value.upper())
    return (UNKNOWN if told is _ABSENT else typed(told, value)), told


def _field(name: str) -> str:
    return _FIELDS.get(name, name.replace("-", "_"))


def typed(told: Any, value: str) -> str:
    """Whether `value`, a word of a command line, is what was typed as `told`."""
    text = value.strip().lower()
    if told is None:
        return SAME if text in ("none", "null") else OTHER
    if isinstance(told, bool):
        known = text in (*_TRUE, *_FALSE)
        return UNKNOWN if not known else SAME if (text in _TRUE) is told else OTHER
    if isinstance(told, int | float):
        try:
            return SAME if float(text) == told else OTHER
        except ValueError:
            return UNKNOWN  # "128k", "auto"
    if isinstance(told, list) and len(told) == 1 and not isinstance(told[0], list | dict):
        return typed(told[0], value)
    if told == value:
        return SAME
    parsed = _json(value)
    if parsed is not _ABSENT and (not isinstance(told, str) or _json(told) is not _ABSENT):
        return SAME if parsed == (_json(told) if isinstance(told, str) else told) else OTHER
    if isinstance(told, str):
        # A model's name may be told as the folder that it was found in.
        return UNKNOWN if told.startswith("/") and not value.startswith("/") else OTHER
    return UNKNOWN


def _json(text: str) -> Any:
    """What a text is as JSON, where that is an object or a list."""
    try:
        found = json.loads(text)
    except ValueError:
        return _ABSENT
    return found if isinstance(found, (dict, list)) else _ABSENT


def spelt(argv: list[str], name: str, info: Mapping[str, Any]) -> str:
    """The word by which a command line has a flag: itself, an alias, or its beginning, which argparse takes
    for the whole; "" for none. A beginning that is a field of the server's own (`info`) is another flag.
    """
    for word in argv:
        bare = word[2:].partition("=")[0] if word.startswith("--") else ""
        if bare and (
            _field(bare) == _field(name) or (name.startswith(bare) and info and _field(bare) not in info)
        ):
            return word
    return ""


def labels(metrics: str, metric: str, label: str) -> list[str]:
    """The values of a label over all samples of a metric, in Prometheus' text form."""
    found: list[str] = []
    for line in metrics.split("\n"):
        if line.startswith(metric + "{"):
            inside = line[len(metric) + 1 : line.rfind("}")]
            pairs = dict(re.findall(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"', inside))
            found.append(re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], pairs.get(label, "")))
    return found


def everywhere(info: Mapping[str, Any], field: str) -> list[Any]:
    """What a server tells in `field`: its own process, and each scheduler's in `internal_states`."""
    states = info.get("internal_states")
    places = [info, *(s for s in (states if isinstance(states, list) else []) if isinstance(s, dict))]
    return [place[field] for place in places if field in place]
