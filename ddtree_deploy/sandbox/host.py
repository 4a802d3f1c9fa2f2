"""The whole sandbox: bring it up, take it down, say how it is."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ddtree_deploy.sandbox import processes, service, sshd, venv
from ddtree_deploy.sandbox.errors import SandboxError
from ddtree_deploy.sandbox.layout import ADDRESS, MARKER, Layout, Ports, choose_ports

Say = Callable[[str], None]

FOLDER = Path(".sandbox")
PROMPTS = Path(__file__).parents[2] / "playbooks" / "prompts.jsonl"
MODELS_SCRIPT = Path(__file__).with_name("models.py")


@dataclass(frozen=True)
class Sandbox:
    """A sandbox as it is now.

    Attributes:
        folder: where it lies.
        hosts_file: a hosts file with its one host, ``sandbox``, and its real ports.
        ssh: ``openssh``, ``asyncssh``, or empty when the SSH server is down.
        venv: ``ready``, ``outdated`` (another recipe) or ``absent``.
        service: its speculative algorithm (``DFLASH`` is the chain), ``starting``, or empty when it is down.
    """

    folder: Path
    hosts_file: Path
    ssh_port: int
    http_port: int
    ssh: str
    venv: str
    service: str

    @property
    def endpoint(self) -> str:
        """Base URL of the server."""
        return f"http://{ADDRESS}:{self.http_port}"

    def to_dict(self) -> dict[str, str | int]:
        """For ``--json``."""
        data = asdict(self)
        return {name: value if isinstance(value, int) else str(value) for name, value in data.items()}


def up(
    *,
    folder: Path = FOLDER,
    say: Say,
    ssh_port: int | None = None,
    http_port: int | None = None,
    python: str | None = None,
    torch_index_url: str | None = None,
    confirm: Callable[[str], bool] | None = None,
    fresh_service: bool = False,
    flavour: sshd.Flavour = "auto",
    prompts: Path = PROMPTS,
) -> Sandbox:
    """Make what is missing and start what does not run: SSH server, venv, models, the service with the chain.

    Args:
        folder: where the sandbox lies.
        say: gets a line per thing worth telling.
        ssh_port, http_port: ports; else those of the environment, of the last `up`, or 2222 and 31000.
        python: interpreter for the venv.
        torch_index_url: package index with CPU builds of torch.
        confirm: asked before a CUDA build of torch is fetched; None: say it and go on.
        fresh_service: replace a service that is not the chain by the chain.
        flavour: of the SSH server.
        prompts: the prompts whose continuations the drafts learn.

    Raises:
        SandboxError: some part could not be made or started; the others are left as they are.
    """
    layout = Layout.at(folder)
    layout.folder.mkdir(parents=True, exist_ok=True)
    with _locked(layout, say):
        ports = _ports(layout, ssh_port, http_port)
        _refuse_to_move(layout, ports)
        server = _ssh_server(layout, ports, flavour)
        if server.pid is None:
            sshd.check_free(ADDRESS, ports.ssh, what="SSH")
        service.find(layout, ports.http)
        layout.record(ports)
        _make_venv(layout, say, python=python, torch_index_url=torch_index_url, confirm=confirm)
        _make_models(layout, say, prompts)
        started = server.start()
        say(f"ssh: {'started' if started else 'kept'}, {server.flavour} on {ADDRESS}:{ports.ssh}")
        _serve(layout, ports, say, fresh=fresh_service)
    result = look(folder)
    say(f"hosts file: {result.hosts_file}")
    return result


def down(*, folder: Path = FOLDER, say: Say, purge: bool = False) -> None:
    """End every process of the sandbox; with ``purge`` remove its folder too.

    Raises:
        SandboxError: a process could not be ended, or the folder is not a sandbox's.
    """
    layout = Layout.at(folder)
    ports = layout.recorded_ports()
    if ports is None:
        if purge and layout.folder.exists() and any(layout.folder.iterdir()):
            raise SandboxError(f"{layout.folder} is not a sandbox: it is not removed")
        say(f"there is no sandbox in {layout.folder}")
        return
    with _locked(layout, say):
        own = processes.ancestry(os.getpid())
        before = [process for process in service.members(layout) if process.pid not in own]
        remaining = processes.end(before, grace=service.GRACE)
        say(f"service: ended, {len(before)} processes" if before else "service: was down")
        server = _ssh_server(layout, ports, "auto")
        ran = server.pid is not None
        remaining += server.stop()
        say(f"ssh: {'ended' if ran else 'was down'}")
        remaining += [p for p in service.members(layout) if p.pid not in own and p not in remaining]
        if remaining:
            names = ", ".join(f"{process.pid} ({process.command()[:60]})" for process in remaining)
            raise SandboxError(f"still there: {names}", next_command="ddtree-deploy sandbox down")
    if purge:
        shutil.rmtree(layout.folder)
        say(f"removed {layout.folder}")


def status(*, folder: Path = FOLDER, say: Say) -> Sandbox:
    """Say how the sandbox is, and return it."""
    found = look(folder)
    say(f"ssh: {f'{found.ssh} on {ADDRESS}:{found.ssh_port}' if found.ssh else 'down'}")
    say(f"venv: {found.venv}")
    say(f"service: {f'{found.service} on {found.endpoint}' if found.service else 'down'}")
    say(f"hosts file: {found.hosts_file if found.hosts_file.exists() else 'none yet'}")
    return found


def look(folder: Path = FOLDER) -> Sandbox:
    """How the sandbox is; changes nothing, and waits for nothing."""
    layout = Layout.at(folder)
    ports = layout.recorded_ports() or choose_ports()
    state = sshd.running(layout.ssh)
    launched = service.launched(layout)
    serving = ""
    if launched is not None:
        listening = processes.listener(ports.http) is not None
        serving = (service.algorithm(ports.http) if listening else "") or "starting"
    return Sandbox(
        folder=layout.folder,
        hosts_file=layout.hosts_file,
        ssh_port=ports.ssh,
        http_port=ports.http,
        ssh=state,
        venv=venv.state(layout.venv),
        service=serving,
    )


def _serve(layout: Layout, ports: Ports, say: Say, *, fresh: bool) -> None:
    running = service.find(layout, ports.http)
    if running is not None and running.algorithm not in ("", service.CHAIN):
        if not fresh:
            say(
                f"service: kept; it runs {running.algorithm}, not the chain "
                f"({service.CHAIN}): `ddtree-deploy sandbox up --fresh-service` starts that"
            )
            return
        _stop_service(layout, say, f"it runs {running.algorithm}, not the chain")
    process = service.launched(layout)
    if process is not None and running is not None and service.generates(ports.http):
        say(f"service: kept, {service.CHAIN} on http://{ADDRESS}:{ports.http}")
        return
    if process is None:
        process = service.start(layout, ports.http)
        say("service: starting SGLang on the CPU")
    seconds = service.wait_ready(layout, process, ports.http, say)
    name = service.algorithm(ports.http)
    say(f"service: {name} on http://{ADDRESS}:{ports.http} generates, after {seconds:.0f} s")


def _make_venv(
    layout: Layout,
    say: Say,
    *,
    python: str | None,
    torch_index_url: str | None,
    confirm: Callable[[str], bool] | None,
) -> None:
    if venv.state(layout.venv) != "ready" and service.launched(layout):
        _stop_service(layout, say, "the venv is not up to date")
    venv.ensure(
        layout.venv,
        layout.build_log,
        say,
        python=python,
        torch_index_url=torch_index_url,
        confirm=confirm,
    )


def _make_models(layout: Layout, say: Say, prompts: Path) -> None:
    if not prompts.is_file():
        raise SandboxError(f"no prompts for the drafts to learn: {prompts} does not exist", stage="models")
    stamp = layout.models / "made-from"
    digest = hashlib.sha256(MODELS_SCRIPT.read_bytes() + b"\0" + prompts.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text().strip() == digest:
        say("models: kept")
        return
    if service.launched(layout):
        _stop_service(layout, say, "the models are made anew")
    say("models: making a tiny target and its drafts (half a minute)")
    began = time.monotonic()
    new = layout.models.with_name("models.new")
    shutil.rmtree(new, ignore_errors=True)
    # Isolated: the script's own folder must not be searched for torch's imports.
    arguments = [
        str(venv.python_of(layout.venv)),
        "-I",
        str(MODELS_SCRIPT),
        str(new),
        "--prompts",
        str(prompts),
    ]
    with layout.build_log.open("ab") as log:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        tail = layout.build_log.read_text(errors="replace").strip().splitlines()[-1:]
        raise SandboxError(
            f"the models could not be made: {''.join(tail)}",
            stage="models",
            next_command=f"less {layout.build_log}",
        )
    (new / stamp.name).write_text(digest + "\n")
    shutil.rmtree(layout.models, ignore_errors=True)
    new.replace(layout.models)
    say(f"models: made in {time.monotonic() - began:.0f} s")


def _stop_service(layout: Layout, say: Say, reason: str) -> None:
    say(f"service: stopping, since {reason}")
    remaining = processes.end(service.tree(layout), grace=service.GRACE)
    if remaining:
        raise SandboxError(
            f"process {remaining[0].pid} cannot be ended",
            stage="service",
            next_command="ddtree-deploy sandbox down",
        )


def _ssh_server(layout: Layout, ports: Ports, flavour: sshd.Flavour) -> sshd.SshServer:
    return sshd.SshServer(
        layout.ssh,
        ports.ssh,
        layout.home,
        address=ADDRESS,
        flavour=flavour,
        environment={MARKER: str(layout.folder)},
        known_hosts=layout.known_hosts,
        key_folder=layout.keys,
    )


def _ports(layout: Layout, ssh: int | None, http: int | None) -> Ports:
    """Those given or in the environment, else those of the last `up`, else the usual ones."""
    recorded = layout.recorded_ports()
    return choose_ports(ssh, http, usual=recorded) if recorded else choose_ports(ssh, http)


def _refuse_to_move(layout: Layout, ports: Ports) -> None:
    recorded = layout.recorded_ports()
    if recorded is None or recorded == ports:
        return
    if sshd.running(layout.ssh) or service.members(layout):
        raise SandboxError(
            f"the sandbox runs on the ports {recorded.ssh} and {recorded.http}",
            state="nothing was changed",
            next_command="ddtree-deploy sandbox down",
        )


@contextmanager
def _locked(layout: Layout, say: Say) -> Iterator[None]:
    """One `up` or `down` at a time in one folder; the lock goes with the process that holds it."""
    with layout.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another `ddtree-deploy sandbox` in this folder")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
