"""End the run that holds a host: asked in order, then killed and recovered, all of it on the host."""

from __future__ import annotations

from ddtree_deploy.errors import LockedError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts, LockFacts
from ddtree_deploy.onhost.wire.protocol import STATE_BROKEN
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.recovery import GOING_DOWN, Emit, command_there
from ddtree_deploy.running.sight import Sight
from ddtree_deploy.ssh import Link


def in_words(lock: LockFacts) -> str:
    """Who holds the lock, since when, at which step."""
    who = f"run {lock.run or '?'} of {lock.who or 'somebody who has not said'}"
    place = f"; its state is not here but in {lock.state_dir or 'a place unknown'}" if lock.elsewhere else ""
    return (
        f"{who} holds the host since {lock.since or '?'}, at step {lock.step or '?'} "
        f"(pid {lock.pid or '?'}){place}"
    )


def refuse(host: Host, stage: str, lock: LockFacts, more: str = "", ways: str = "") -> LockedError:
    """What a command says that does nothing while the runner lives. ways: what else may be done."""
    following = f"ddtree-deploy attach {host.name}{ways}"
    if lock.elsewhere:  # nothing of ours reaches it from here
        own = f", with state_dir: {lock.state_dir} and its user in hosts.yaml" if lock.state_dir else ""
        following = f"wait for it, then the same command; or ddtree-deploy unlock {host.name}{own}"
    return LockedError(
        in_words(lock) + more,
        stage=stage,
        host=host.name,
        state="the other run goes on, we touched nothing",
        next_command=following,
    )


def force(  # noqa: PLR0917
    host: Host, link: Link, facts: Facts, patience_s: float, emit: Emit, sight: Sight
) -> Outcome:
    """Have the host end its run. Exit code 0, 3 (a person is needed), 5 (something else holds the lock)
    or 8 (the host goes down; the rest is done when it boots).

    Raises ContactLost when the connection goes away before the host has said how it ended.
    """
    words = ["unlock", facts.site_dir, f"{patience_s:.0f}"]
    lost = "the connection was lost while the run was being ended", "the host goes on by itself"
    code, events, said = command_there(host, link, facts, facts.lock.run, words, emit, sight, lost)
    ended = next((e for e in events if e["e"] == "unlocked"), None)
    good, broken = code == 0, GOING_DOWN if code == 8 else STATE_BROKEN
    return Outcome(
        host.name,
        "unlock",
        code if code in (0, 5, 8) else 3,
        run=facts.lock.run,
        verdict="pass" if good else "fail",
        state=str(ended.get("state", "") if ended else "") if good else broken,
        step="" if good else "unlock",
        reason=f"the run was {ended['how']}: {ended['reason']}" if ended else "; ".join(said),
        next_command=f"ddtree-deploy status {host.name}",
    )
