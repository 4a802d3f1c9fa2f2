"""verify, bench, golden record, calibrate, confirm: runs that install nothing. They take the same road as a
rollout: locked, detached, journalled, recorded."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_deploy.commands import inputs
from ddtree_deploy.commands.failures import error_event
from ddtree_deploy.commands.options import Hosts, Json, Measuring, Target, Yes
from ddtree_deploy.commands.run import start
from ddtree_deploy.errors import DeployError, GateFailed, InputError, gravest
from ddtree_deploy.inputs.inventory import Host, Inventory
from ddtree_deploy.inputs.playbook import Playbook, Step
from ddtree_deploy.inputs.playbook_schema import GOLDEN
from ddtree_deploy.inputs.references import golden
from ddtree_deploy.onhost.judge.stats import MIN_RESTARTS
from ddtree_deploy.onhost.wire.kinds import TABLE
from ddtree_deploy.onhost.wire.protocol import Launch
from ddtree_deploy.planning import plan_gates
from ddtree_deploy.planning.assemble import NothingToDo, PlanResult, RunOptions
from ddtree_deploy.planning.known import Known
from ddtree_deploy.running import fleet
from ddtree_deploy.running.complaint import complain
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.record import Record

Make = Callable[[Known, RunOptions], PlanResult | NothingToDo]
RESTART_S = 3600.0  # of a large model, with its rounds; the step's limit is so many times this


def verify(
    target: Target,
    playbook: Annotated[
        Path | None,
        typer.Option("--playbook", metavar="FILE", help="The gates (default: playbooks/verify.yaml)."),
    ] = None,
    golden_file: Annotated[
        Path | None,
        typer.Option(
            "--golden", metavar="FILE", help="What tokens are compared with (default: of `golden record`)."
        ),
    ] = None,
    hosts: Hosts = None,
    json_lines: Json = False,
) -> int:
    """Ask the running service through every gate. Nothing is installed, stopped or started."""
    inventory = inputs.load_hosts(hosts)
    book = inputs.load_playbook(playbook, "verify")

    def make(known: Known, options: RunOptions) -> PlanResult:
        path = golden_file or golden_path(inventory, known.host)
        found = {GOLDEN: golden.read(path)} if golden_file or path.exists() else {}
        return plan_gates.make_gates(known, book, options, found)

    return run(inventory, target, book, json_lines, make).exit_code


def bench(target: Target, playbook: Measuring = None, hosts: Hosts = None, json_lines: Json = False) -> int:
    """Measure the running service: greedy counters, then rounds of SGLang's own benchmark client."""
    inventory = inputs.load_hosts(hosts)
    book = measuring(playbook, inventory.resolve(target), "bench")

    return run(inventory, target, book, json_lines).exit_code


def record_golden(
    target: Target,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="[default: .ddtree-deploy/golden/HOST.json]"),
    ] = None,
    playbook: Measuring = None,
    hosts: Hosts = None,
    json_lines: Json = False,
) -> int:
    """Record what the running service says, token by token; ask one that is known to be right."""
    inventory = inputs.load_hosts(hosts)
    chosen = inventory.resolve(target)
    if output is not None and len(chosen) > 1:
        raise InputError(f"-o names one file, {target} has {len(chosen)} hosts", field="-o")
    book = measuring(playbook, chosen, "golden", bench=None)

    done = run(inventory, target, book, json_lines)
    codes = [done.exit_code]
    for host, outcome in zip(chosen, done.outcomes, strict=False):
        if outcome.exit_code == 0:
            try:
                print(_keep(inventory, host, outcome, output, json_lines))
            except DeployError as error:  # one file less; what the hosts said is no less true
                if json_lines:
                    print(json.dumps(error_event(error)))
                complain(error.render())
                codes.append(error.exit_code)
    return gravest(codes)


def _keep(inventory: Inventory, host: Host, outcome: Outcome, output: Path | None, json_lines: bool) -> str:
    """Write the golden file. Returns the line that says so: for people, or an event."""
    path = output or golden_path(inventory, host)
    result = outcome.results.get("baseline")
    if not result:
        raise GateFailed(
            "the service was not measured, so there is nothing to record",
            stage="baseline",
            host=host.name,
            state="nothing was changed",
            next_command=f"ddtree-deploy status {host.name}",
        )
    recorded = datetime.now(timezone.utc).isoformat(timespec="seconds")
    data = golden.of_baseline(host.name, recorded, result)
    golden.write(data, path)
    if json_lines:
        told = {key: data[key] for key in ("epsilon", "tie_share", "identity")}
        event = {"e": "golden", "t": time.time(), "host": host.name, "run": outcome.run, "file": str(path)}
        return json.dumps(
            {**event, "prompts": len(data["texts"]), "refused": data["sample"]["refused"], **told}
        )
    who = ", ".join(f"{k} {v}" for k, v in data["identity"].items() if v)
    logs = "without log-probs: ties cannot be told" if data["sample"]["refused"] else "with log-probs"
    return f"{path}: {len(data['texts'])} prompts {logs}; epsilon {data['epsilon']:.2g}; {who}"


def calibrate(  # noqa: PLR0917
    target: Target,
    restarts: Annotated[int, typer.Option("--restarts", metavar="N", help="At least 6.")] = 6,
    playbook: Measuring = None,
    hosts: Hosts = None,
    yes: Yes = False,
    json_lines: Json = False,
) -> int:
    """Restart the unchanged service N times and keep how much its speed differs, for the benchmark gate."""
    if restarts < MIN_RESTARTS:
        raise InputError(f"{restarts} restarts say too little, {MIN_RESTARTS} are needed", field="--restarts")
    inventory = inputs.load_hosts(hosts)
    base = measuring(playbook, inventory.resolve(target), "calibrate")
    baseline = base.steps[-2].options
    kept = {key: baseline[key] for key in ("prompts", "bench", "hang_after_s")}
    options = {"restarts": restarts, **kept}
    book = restarting(base, Step("calibrate", "calibrate", restarts * RESTART_S, options))
    inputs.require_consent(yes, f"calibrate {target}")

    def make(known: Known, options: RunOptions) -> PlanResult:
        return plan_gates.make_gates(as_it_runs(known), book, options, {})

    return run(inventory, target, book, json_lines, make, ask=not yes).exit_code


def confirm(target: Target, hosts: Hosts = None, json_lines: Json = False) -> int:
    """Call the release good that a rollout left held, because a gate could not decide."""
    inventory = inputs.load_hosts(hosts)
    steps = (_step("lock"), _step("confirm"), _step("unlock"))
    book = Playbook(inventory.file, "confirm", "confirm", steps)

    def make(known: Known, options: RunOptions) -> PlanResult | NothingToDo:
        return plan_gates.make_confirm(known, book, options)

    return run(inventory, target, book, json_lines, make).exit_code


def golden_path(inventory: Inventory, host: Host) -> Path:
    """Where `golden record` keeps a host's file, and `verify` looks for it."""
    return Record(inventory.file).folder / "golden" / f"{host.name}.json"


def measuring(playbook: Path | None, hosts: list[Host], action: str, **changed: Any) -> Playbook:
    """lock, stage, the baseline step of the rollout's playbook (with `changed` options), unlock."""
    book = inputs.load_rollout(playbook, hosts)
    baseline = book.step("baseline")
    if baseline is None:
        raise InputError("the playbook has no baseline step, which says what to measure", file=book.file)
    if not changed and baseline.options["bench"] is None:
        raise InputError(
            "the baseline has no bench, which says how to measure",
            file=book.file,
            line=baseline.line,
            field="baseline",
        )
    step = dataclasses.replace(baseline, options={**baseline.options, **changed})
    steps = (_step("lock"), _step("stage"), step, _step("unlock"))
    return dataclasses.replace(book, name=action, action=action, steps=steps)


def restarting(book: Playbook, step: Step) -> Playbook:
    """The same with the service on record before, and another step in the place of the baseline."""
    steps = (_step("lock"), _step("backup"), _step("stage"), step, _step("unlock"))
    return dataclasses.replace(book, steps=steps)


def as_it_runs(known: Known) -> Known:
    """The host without launch edits: what runs is restarted as it is."""
    if known.host.service is None:
        return known
    service = dataclasses.replace(known.host.service, launch=Launch())
    return dataclasses.replace(known, host=dataclasses.replace(known.host, service=service))


def _step(kind: str) -> Step:
    return Step(kind, kind, TABLE[kind].timeout_s, {})


def run(
    inventory: Inventory,
    target: str,
    book: Playbook,
    json_lines: bool,
    make: Make | None = None,
    *,
    ask: bool = False,
) -> fleet.FleetOutcome:
    """Do what `make` plans, else the steps as they are. ask: with the plan shown, before anything begins."""
    return start(
        inventory,
        target,
        inventory.resolve(target),
        question="{action} restarts the service of {host}. Go on?" if ask else None,
        json_lines=json_lines,
        playbook=book,
        make=make or (lambda known, options: plan_gates.make_gates(known, book, options, {})),
    )
