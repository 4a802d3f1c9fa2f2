"""A sandbox of its own with the real SGLang, whose DDTREE can be broken while it serves.

It borrows venv and models of the checkout's `.sandbox`. Its DDTREE is the payload of this checkout, loaded
from a folder beside the venv, with `tests/payload/controls` as a second plugin: what that breaks, a payload
breaks that has the same fault in its source.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddtree_deploy.sandbox import down, look, processes, service, up
from ddtree_deploy.sandbox.layout import Layout
from tests.lab.controller import Result, Running
from tests.payload.sglang_venv import install_as_wheel
from tests.ports import free_port

PROJECT = Path(__file__).parents[2]
CONTROLS = PROJECT / "tests" / "payload" / "controls" / "ddtree_controls.py"
PATIENCE = 1200.0
TREE = ("--speculative-ddtree-budget", "16")


def missing() -> str:
    """Why there is nothing to borrow; empty when there is."""
    lender = Layout.at(PROJECT / ".sandbox")
    if look(lender.folder).venv == "ready" and (lender.models / "made-from").exists():
        return ""
    return "the checkout's sandbox is not made: ddtree-deploy sandbox up"


@dataclass
class Breakable:
    """`root` is the controller's folder (playbooks, runs), `root/sandbox` the host."""

    root: Path

    def __post_init__(self) -> None:
        lender = Layout.at(PROJECT / ".sandbox")
        self.layout = Layout.at(self.root / "sandbox")
        self.layout.home.mkdir(parents=True)
        self.layout.venv.symlink_to(lender.venv)
        self.layout.models.symlink_to(lender.models)
        shutil.copytree(PROJECT / "playbooks", self.root / "playbooks")
        self.port = free_port()
        self.control = self.root / "controls.json"
        self.plugins = self.root / "plugins"
        self.plugins.mkdir()
        install_as_wheel(
            self.plugins, PROJECT / "payload" / "sglang_ddtree", "ddtree", "sglang_ddtree.plugin:register"
        )
        install_as_wheel(self.plugins, CONTROLS, "controls", "ddtree_controls:register")
        self.behave()

    # ---- the host ----------------------------------------------------------------------------------

    def up(self) -> None:
        """The SSH server, and the chain."""
        up(folder=self.layout.folder, say=print, ssh_port=free_port(), http_port=self.port)

    def down(self) -> None:
        down(folder=self.layout.folder, say=print)
        assert service.members(self.layout) == []

    def behave(self, broken: str | None = None, **more: Any) -> None:
        """From the next step on DDTREE is sound, or broken in this way (`ddtree_controls`)."""
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps({"oracle": None, "break": broken, **more}))
        new.replace(self.control)

    def serve(self, algorithm: str = "DDTREE") -> None:
        """DDTREE or the chain in the place of what served, as a person would start it."""
        self.stop()
        command = service.command(self.layout, self.port)
        command[command.index(service.CHAIN)] = algorithm
        env = {
            **service.environment(self.layout),
            "PYTHONPATH": str(self.plugins),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DDTREE_CONTROLS": str(self.control),
        }
        self.layout.service_log.parent.mkdir(exist_ok=True)
        with self.layout.service_log.open("ab") as log:
            child = subprocess.Popen(
                [*command, *(TREE if algorithm == "DDTREE" else ())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.layout.home,
                env=env,
                start_new_session=True,
            )
        started = processes.find(child.pid)
        assert started is not None, service.log_tail(self.layout)
        service.wait_ready(self.layout, started, self.port, lambda _: None)
        assert service.algorithm(self.port) == algorithm

    def stop(self) -> None:
        """End whatever serves."""
        assert processes.end(service.tree(self.layout), grace=service.GRACE) == []

    # ---- the controller ----------------------------------------------------------------------------

    def playbook(self, name: str, action: str, steps: list[Any]) -> str:
        """Write a playbook; returns its path for --playbook."""
        path = self.root / "playbooks" / f"{name}.yaml"
        book = {"schema": 1, "name": name, "action": action, "steps": steps}
        path.write_text(yaml.safe_dump(book, sort_keys=False))
        return str(path)

    def run(self, *words: str) -> Result:
        """Run the command line to its end, by its JSON events."""
        argv = [sys.executable, "-m", "ddtree_deploy", *words]
        process = subprocess.Popen(
            [*argv, "--hosts", str(self.layout.hosts_file), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.root,
            env={**os.environ, "HOME": str(self.root), "PYTHONPATH": str(PROJECT)},
            start_new_session=True,
        )
        return Running(process, argv).finish(PATIENCE)
