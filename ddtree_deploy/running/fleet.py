"""Several hosts, one after another. The first that does not pass stops the rest, also an unreachable one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.running.outcome import Outcome, exit_code_of
from ddtree_deploy.running.record import Last
from ddtree_deploy.running.rollout import Job, run_host


@dataclass(frozen=True)
class FleetOutcome:
    """`waiting` are the hosts that were not begun."""

    outcomes: list[Outcome]
    waiting: list[str]

    @property
    def exit_code(self) -> int:
        """Of all hosts together."""
        return exit_code_of(self.outcomes)


def run(target: str, hosts: list[Host], job: Job) -> FleetOutcome:
    """Do the job on the hosts in their order; remembers a rollout as the last one."""
    outcomes: list[Outcome] = []
    runs: dict[str, str] = {}
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def remember(host: str, run: str) -> None:
        if job.payload is None:  # no rollout
            return
        runs[host] = run
        job.record.set_last(Last(time, target, dict(runs)))  # or `rollback` would take an earlier one

    for host in hosts:
        outcome = run_host(host, job, remember)
        outcomes.append(outcome)
        if outcome.exit_code != 0 and outcome.verdict != "skipped":
            break
    fleet = FleetOutcome(outcomes, [h.name for h in hosts[len(outcomes) :]])
    job.view.fleet(fleet.outcomes, fleet.waiting)
    return fleet
