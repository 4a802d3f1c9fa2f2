"""A host behind a real SSH server: a small venv with a `sglang`, a fake server, and the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ddtree_deploy.sandbox import processes
from ddtree_deploy.sandbox.sshd import SshServer
from tests.lab import tree
from tests.lab.controller import Result, Running
from tests.lab.fake_venv import FILES, VERSION
from tests.lab.payloads import make_payload, write_playbooks

FAKE = Path(__file__).parents[1] / "lab" / "fake_sglang.py"
PATIENCE = 300.0
OVERLAID = "sglang/srt/speculative/dflash_info.py"


@dataclass
class Box:
    """`root/venv` on the host, `root/work` on the controller. `port`: of the service; 0 = no service."""

    root: Path
    server: SshServer
    port: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.venv = self.root / "venv"
        self.work = self.root / "work"
        self.control = self.root / "moods.json"
        self.state = self.root / "state"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], check=True)
        (self.site,) = self.venv.glob("lib/python3.*/site-packages")
        info = f"sglang-{VERSION}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n"
        files = FILES | {f"{info}/METADATA": metadata, f"{info}/RECORD": ""}
        for name, text in files.items():
            path = self.site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace('"/opt/sglang"', repr(str(FAKE.parent))))
        self.work.mkdir()
        make_payload(self.work / "payload")
        (self.work / "playbooks").mkdir()
        write_playbooks(self.work / "playbooks")
        self.write_hosts()

    def write_hosts(self, **more: Any) -> None:
        """Write hosts.yaml; `more` are further hosts (name -> fields); all are in the group `all`."""
        entry: dict[str, Any] = {
            "address": self.server.address,
            "port": self.server.port,
            "identity_file": str(self.server.identity),
            "known_hosts": str(self.server.known_hosts),
            "python": f"{self.venv}/bin/python",
            "state_dir": str(self.state),
            "connect_timeout": "60s",
        }
        if self.port:
            entry["service"] = {
                "kind": "adopted",
                "endpoint": f"http://127.0.0.1:{self.port}",
                "launch": {"set": {"speculative-algorithm": "DDTREE"}},
                "start": {"stalled_after": "60s", "limit": "120s"},
                "stop": {"drain": "5s", "limit": "60s"},
            }
        hosts = {"box": entry} | {name: entry | fields for name, fields in more.items()}
        data = {"hosts": hosts, "groups": {"all": list(hosts)}}
        (self.work / "hosts.yaml").write_text(yaml.safe_dump(data, sort_keys=False))

    # ---- the service -------------------------------------------------------------------------------

    def serve(self, **moods: Any) -> None:
        """Start the service by hand, as a user with tmux would, and wait until it answers."""
        self.moods(**moods)
        argv = [f"{self.venv}/bin/python", "-m", "sglang.launch_server", "--port", str(self.port)]
        argv += ["--speculative-algorithm", "DFLASH", "--fake-control", str(self.control)]
        log = (self.root / "server.log").open("ab")
        self.started.append(
            subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        )
        log.close()
        wait_for(lambda: self.algorithm() == "DFLASH", "the fake server")

    def moods(self, **moods: Any) -> None:
        self.control.write_text(json.dumps(moods))

    def algorithm(self) -> str:
        """What the server says that it runs; "" when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_info", timeout=10) as answer:
                return str(json.load(answer)["speculative_algorithm"])
        except OSError:
            return ""

    # ---- the controller ----------------------------------------------------------------------------

    def start(self, command: str, *words: str, json_lines: bool = True, **env: str) -> Running:
        """Start the command line in the controller's folder."""
        argv = [sys.executable, "-m", "ddtree_deploy", command, *words]
        process = subprocess.Popen(
            argv + (["--json"] if json_lines else []),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            start_new_session=True,
            env={**os.environ, "HOME": str(self.root), **env},
        )
        return Running(process, argv)

    def run(self, command: str, *words: str) -> Result:
        """Run the command line to its end, by its JSON events."""
        return self.start(command, *words).finish(PATIENCE)

    def plain(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run it as in a pipe."""
        argv = [sys.executable, "-m", "ddtree_deploy", command, *words]
        return subprocess.run(
            argv,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "HOME": str(self.root)},
            check=False,
        )

    def snapshot(self) -> tree.State:
        """The venv's packages, with all that a rollback must restore."""
        return tree.state(self.site)

    def payload(self, name: str, **how: Any) -> str:
        """Write another payload; returns its path for --payload."""
        return str(make_payload(self.work / name, **how))

    def close(self) -> None:
        """End the service, whoever started it last."""
        holder = processes.listener(self.port) if self.port else None
        if holder is not None:
            processes.end([holder])
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(condition: Any, what: str, timeout: float = PATIENCE) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.05)


def differs(box: Box, before: tree.State) -> list[str]:
    return tree.difference(before, box.snapshot()) + tree.stale_bytecode(box.site)


def with_run_step(box: Box, after: str) -> Path:
    """A step of the user's own after step `after` that waits for the file that is returned."""
    flag = box.root / "go-on"
    script = f"echo waiting; until test -e {flag}; do sleep 0.05; done"
    step = {"run": {"name": "hold", "command": ["/bin/sh", "-c", script], "timeout": "10m"}}
    file = box.work / "playbooks" / "rollout.yaml"
    playbook = yaml.safe_load(file.read_text())
    at = [s if isinstance(s, str) else next(iter(s)) for s in playbook["steps"]].index(after)
    playbook["steps"].insert(at + 1, step)
    file.write_text(yaml.safe_dump(playbook, sort_keys=False))
    return flag


def sessions(server: SshServer) -> list[processes.Process]:
    assert server.pid is not None
    return processes.descendants(server.pid)
