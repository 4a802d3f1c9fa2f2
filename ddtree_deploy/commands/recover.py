"""attach, recover, unlock, trust: what is typed when a run, a host or its key was lost sight of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from ddtree_deploy import console, ssh
from ddtree_deploy.commands import inputs
from ddtree_deploy.commands.options import Hosts, Json, Target
from ddtree_deploy.errors import DeployError, GateFailed, InputError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.planning.assemble import facts_request
from ddtree_deploy.running import unlocking
from ddtree_deploy.running.follow import Follower
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.record import Record
from ddtree_deploy.running.recovery import recover_orphan
from ddtree_deploy.running.remote import ask_facts, run_dir_of
from ddtree_deploy.running.rollout import Emitter, Session, completed, of_end, since
from ddtree_deploy.running.sight import Sight
from ddtree_deploy.ssh import known_hosts

Settle = Callable[[Callable[[Sight], Outcome]], Outcome]  # work on the host, whose outcome is settled
Act = Callable[[ssh.Link, Facts, Emitter, Settle], Outcome]


def attach(target: Target, hosts: Hosts = None, json_lines: Json = False) -> int:
    """Follow the run that is on a host now, to its verdict."""
    # Without one: tells how the last one from here ended. A record whose end was not seen is completed.
    inventory = inputs.load_hosts(hosts)
    host = inputs.single(inventory.resolve(target), "attach")
    record = Record(inventory.file)
    view = console.choose(json_lines)
    begun = time.monotonic()
    emit = Emitter(view, host.name)
    session, sight = Session(host, emit), Sight()

    def work() -> Outcome:
        link = session.dial()
        facts = ask_facts(link, host, facts_request(host, None))
        emit.run = _run_to_follow(host, facts, record)
        emit.launched = True
        emit.resume(record)
        follower = Follower(
            host=host,
            run_dir=run_dir_of(facts, emit.run),
            python=facts.python,
            connect=session.dial,
            emit=emit,
            interrupts=interrupts,
            sight=sight,
        )
        try:
            return of_end(host.name, "attach", follower.attach(link))
        except GateFailed as error:
            raise _never_began(host, emit.run, error, sight) from error

    with Interrupts() as interrupts:
        outcome = sight.settle(host.name, "attach", interrupts, work)
        return completed(outcome, emit, session, begun).exit_code


def _never_began(host: Host, run: str, error: GateFailed, sight: Sight) -> DeployError:
    """A run of our record whose folder is not on the host: its controller ended before it was sent."""
    if f"{run}/runner.pyz" not in error.message:
        return error
    sight.end()
    return InputError(
        f"run {run} is not on the host: it never began there, or is long over",
        stage="attach",
        host=host.name,
        next_command=f"ddtree-deploy status {host.name}",
    )


def _run_to_follow(host: Host, facts: Facts, record: Record) -> str:
    if facts.lock.elsewhere:
        raise unlocking.refuse(host, "attach", facts.lock)
    if facts.lock.held and facts.lock.run:
        return facts.lock.run
    if facts.orphan is not None:
        return facts.orphan.run
    run = record.newest(host.name)
    if not run:
        raise InputError(
            "no run is active on the host, and none was made from here",
            host=host.name,
            next_command=f"ddtree-deploy status {host.name}",
        )
    return run


def recover(target: Target, hosts: Hosts = None, json_lines: Json = False) -> int:
    """Finish or undo what a dead run left on a host."""
    host = inputs.single(inputs.load_hosts(hosts).resolve(target), "recover")

    def act(link: ssh.Link, facts: Facts, emit: Emitter, settle: Settle) -> Outcome:
        if facts.lock.held:
            raise unlocking.refuse(host, "recover", facts.lock, ": it lives, there is nothing to recover")
        if facts.orphan is None:
            return Outcome.nothing(host.name, "recover", "there is nothing to recover")
        run = emit.run = facts.orphan.run
        return settle(lambda sight: recover_orphan(host, link, facts, run, emit, sight))

    return _on(host, "recover", json_lines, act)


def _on(host: Host, command: str, json_lines: bool, act: Act) -> int:
    """Do something on a host as it is now, and show what came of it."""
    begun, sight = time.monotonic(), Sight()
    emit = Emitter(console.choose(json_lines), host.name)
    with Interrupts() as interrupts, ssh.connect(host) as link:

        def settle(work: Callable[[Sight], Outcome]) -> Outcome:
            return sight.settle(host.name, command, interrupts, lambda: work(sight))

        outcome = act(link, ask_facts(link, host, facts_request(host, None)), emit, settle)
    outcome.seconds = since(begun)
    emit.view.outcome(outcome)
    return outcome.exit_code


def unlock(
    target: Target,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="End the run that holds the host: asked to undo; after --wait killed and recovered.",
        ),
    ] = False,
    wait: Annotated[
        int, typer.Option("--wait", metavar="SECONDS", min=1, help="How long its own undo may take.")
    ] = 600,
    hosts: Hosts = None,
    json_lines: Json = False,
) -> int:
    """Show who holds a host, since when, at which step; with --force, end that run."""
    host = inputs.single(inputs.load_hosts(hosts).resolve(target), "unlock")

    def act(link: ssh.Link, facts: Facts, emit: Emitter, settle: Settle) -> Outcome:
        if facts.lock.held and (facts.lock.elsewhere or not force):
            force_it = f", or end it and put the host back: ddtree-deploy unlock {host.name} --force"
            raise unlocking.refuse(host, "unlock", facts.lock, ways=force_it)
        emit.run = facts.lock.run
        if facts.lock.held:
            emit({"e": "progress", "step": "unlock", "text": unlocking.in_words(facts.lock)})
            return settle(lambda sight: unlocking.force(host, link, facts, wait, emit, sight))
        outcome = Outcome.nothing(host.name, "unlock", "nobody holds the host")
        if facts.orphan is not None:
            outcome.reason += f"; run {facts.orphan.run} ended without a verdict"
            outcome.next_command = f"ddtree-deploy recover {host.name}"
        return outcome

    return _on(host, "unlock", json_lines, act)


def trust(
    target: Target,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="SHA256:...", help="Accept this key, and no other."),
    ] = None,
    hosts: Hosts = None,
) -> int:
    """Put a host's SSH key into its known_hosts file, after it was compared."""
    host = inputs.single(inputs.load_hosts(hosts).resolve(target), "trust")
    kind, key = ssh.offered_key(host)
    seen = known_hosts.fingerprint(key)
    files = ssh.known_hosts_files(host)
    verdict, lines = known_hosts.judge(known_hosts.read(files), host.address, host.port, key)
    name = known_hosts.host_name(host.address, host.port)
    if verdict == "revoked":
        raise ssh.host_key_error(host, verdict, kind, key, lines)
    if verdict == "known":
        print(f"{host.name}: {kind} {seen} is on file already ({lines[0].file}:{lines[0].line})")
        return 0
    if fingerprint is not None and fingerprint != seen:
        raise InputError(
            f"the host offers {kind} {seen}, not {fingerprint}",
            host=host.name,
            next_command="compare it with `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the host",
        )
    if fingerprint is None:
        print(f"{host.name}: {name} offers {kind} {seen}")
        for line in lines:
            print(f"  on file: {line.key_type} {known_hosts.fingerprint(line.key)} ({line.file}:{line.line})")
        print("Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the host's own console.")
        inputs.require_terminal(f"trust {host.name} --fingerprint {seen}")
        if not inputs.ask("Is it the same?"):
            print("nothing was written")
            return 130
    dropped = known_hosts.accept(files[0], host.address, host.port, kind, key)
    print(
        f"{host.name}: {kind} {seen} is now in {files[0]}" + (f", {len(dropped)} replaced" if dropped else "")
    )
    return 0
