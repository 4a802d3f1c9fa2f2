"""Steps of a playbook -> StepSpecs for one host. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Check, Payload
from ddtree_deploy.inputs.playbook import Playbook, Step
from ddtree_deploy.inputs.yaml.document import suggest
from ddtree_deploy.onhost.wire.kinds import TABLE
from ddtree_deploy.onhost.wire.protocol import Service, StepSpec

_SLACK_S = 60.0


def step_specs(host: Host, playbook: Playbook, payload: Payload | None) -> list[StepSpec]:
    """The steps that run on the host. Raises InputError where host, playbook and payload contradict."""
    if host.service and playbook.action in ("rollout", "rollback") and not playbook.step("stop"):
        raise InputError(
            "the host has a service, but the playbook neither stops nor starts it around `install`",
            file=playbook.file,
            host=host.name,
            next_command="add the steps stop and start, or take `service:` out of hosts.yaml",
        )
    return [
        StepSpec(step.name, step.kind, timeout_s(step, host.service), _options(step, host, playbook, payload))
        for step in playbook.steps
        if not TABLE[step.kind].on_controller
    ]


def timeout_s(step: Step, service: Service | None) -> float:
    """The step's own, or what the service's limits add up to, and a minute."""
    if step.timeout_s is not None:
        return step.timeout_s
    if service is None:
        return _SLACK_S
    if step.kind == "start":
        return service.start_limit_s + _SLACK_S
    drain = float(step.options.get("drain_s", service.drain_s))
    return drain + float(step.options.get("limit_s", service.stop_limit_s)) + _SLACK_S


def _options(step: Step, host: Host, playbook: Playbook, payload: Payload | None) -> dict[str, Any]:
    if step.kind != "smoke":
        return step.options
    assert payload is not None
    checks = {check.name: check for check in payload.checks}
    names = step.options["checks"]
    for name in names or []:
        if name not in checks:
            raise InputError(
                f"the payload has no check {name!r}{suggest(name, checks)}",
                file=playbook.file,
                line=step.line,
                field=step.name,
            )
    chosen = [checks[name] for name in (names if names is not None else checks)]
    # A check of the future command line has nothing to check where no server is configured.
    return {"checks": [_check(c) for c in chosen if host.service or not c.argv]}


def _check(check: Check) -> dict[str, Any]:
    return {key: value for key, value in asdict(check).items() if key != "data" and value is not None}
