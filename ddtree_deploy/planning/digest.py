"""One digest of all that a plan is made of, so that what was planned is what goes out. Pure.

64 hexadecimal digits: 32 of the whole, then 8 each of payload, playbook, host entry and facts, which only say
where two plans differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.onhost.wire.protocol import Plan, to_dict
from ddtree_deploy.planning.known import Known

PARTS = ("payload", "playbook", "host entry", "facts")
_WHOLE, _PART = 32, 8
# What no two plans share, and bytes that depend on the zlib at hand (their content counts). Not whether drift
# was accepted either: the files that it was accepted for count.
_NOT_OF_THE_PLAN = ("run", "who", "created", "secrets", "signature", "accept_drift", "payload_digest")
# Of this machine: another one may plan the same.
_NOT_OF_THE_HOST = (
    "identity_file",
    "known_hosts",
    "sign_with",
    "playbook",
    "connect_timeout_s",
    "file",
    "line",
)
_OF_THE_MOMENT = ("state", "pid", "listening", "warnings")


def of(known: Known, payload: Payload, playbook: Playbook, plan: Plan) -> str:
    """The digest of a rollout's plan. The same inputs and the same host give the same one, on any machine."""
    parts = [_payload(payload, plan), _playbook(playbook), _host(known), _facts(known, plan)]
    whole = [*parts, _but(to_dict(plan), _NOT_OF_THE_PLAN)]
    return _sha(whole)[:_WHOLE] + "".join(_sha(part)[:_PART] for part in parts)


def problem(text: str) -> str:
    """Why this is no such digest; empty for one."""
    if re.fullmatch("[0-9a-f]{64}", text):
        return ""
    return f"{text!r} is no digest of a plan, which has 64 hexadecimal digits"


def differences(expected: Sequence[str], found: str) -> list[str]:
    """Which parts differ from the expected digest that is the most like it; [] where one is the same."""
    if found in expected:
        return []
    each = [
        [name for n, name in enumerate(PARTS) if _part(one, n) != _part(found, n)] or ["the plan itself"]
        for one in expected
    ]
    return min(each, key=len)


def _part(digest: str, number: int) -> str:
    return digest[_WHOLE + _PART * number :][:_PART]


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _but(values: Mapping[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in left_out}


def _digests(entries: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in entries.items()}


def _payload(payload: Payload, plan: Plan) -> Any:
    variant = next(v for v in payload.variants if v.name == plan.variant)
    items = [(i.ref, i.kind, i.sha256, i.base_sha256, i.executable) for i in variant.items]
    checks = [_but(asdict(check), ("data",)) for check in payload.checks]
    entries = _digests(payload.archive_entries(variant))
    return [payload.name, payload.version, variant.name, variant.sglang, items, checks, entries]


def _playbook(playbook: Playbook) -> Any:
    steps = [(s.name, s.kind, s.timeout_s, s.options) for s in playbook.steps]
    ways = [playbook.on_controller_loss, playbook.on_inconclusive]
    return [playbook.action, steps, ways, _digests(playbook.attachments)]


def _host(known: Known) -> Any:
    return _but(asdict(known.host), _NOT_OF_THE_HOST)


def _facts(known: Known, plan: Plan) -> Any:
    """What the plan depends on, and what a person approved it for; nothing that changes by itself."""
    facts = known.facts
    return [
        facts.hostname,
        [facts.python, facts.python_version, facts.site, facts.site_dir],
        {name: asdict(package) for name, package in facts.packages.items()},
        facts.installed,
        [(t.path, t.before) for t in plan.targets],
        _but(asdict(facts.service), _OF_THE_MOMENT) if facts.service else None,
    ]
