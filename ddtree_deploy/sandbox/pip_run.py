"""Run pip for the sandbox's venv: everything into a log, what a waiting person wants to see to them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from ddtree_deploy.sandbox.errors import SandboxError

Say = Callable[[str], None]


class Pip:
    """pip of one interpreter: its output goes to a log, the telling lines to ``say``."""

    def __init__(self, python: Path, log: Path, say: Say, torch_index_url: str | None) -> None:
        self._python = str(python)
        self._log = log
        self._say = say
        self._index = ["--extra-index-url", torch_index_url] if torch_index_url else []
        self._environment = os.environ | {
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_REQUIRE_VIRTUALENV": "0",
            "PYTHONNOUSERSITE": "1",
        }
        for name in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"):
            self._environment.pop(name, None)

    def install(self, *arguments: str) -> None:
        self.run([*self._pip("install"), "--no-compile", "--progress-bar=off", *self._index, *arguments])

    def versions_of(self, package: str) -> list[str]:
        """All versions that the configured indexes and links offer; empty where pip cannot tell."""
        command = [*self._pip("index"), "versions", package, "--json", *self._index]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment, check=False)
        try:
            versions: list[str] = json.loads(done.stdout)["versions"]
        except (ValueError, KeyError):
            return []
        return versions

    def dry_run(self, *arguments: str) -> dict[str, object]:
        """pip's installation report of what it would install; nothing is installed."""
        report = self._log.with_name("pip-report.json")
        options = ["--dry-run", "--ignore-installed", "--progress-bar=off", "--report", str(report)]
        self.run([*self._pip("install"), *options, *self._index, *arguments])
        result: dict[str, object] = json.loads(report.read_text())
        report.unlink()
        return result

    def run(self, command: list[str]) -> None:
        """Run to the end; its output is logged.

        Raises:
            SandboxError: it failed; the last lines are in the message.
        """
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment,
            )
            assert child.stdout is not None
            tail: list[str] = []
            for line in child.stdout:
                log.write(line)
                tail = [*tail[-5:], line.strip()]
                if (news := telling(line)) is not None:
                    self._say(f"venv: {news}")
        if child.wait() != 0:
            raise SandboxError(
                f"pip failed: {' | '.join(text for text in tail if text)}",
                stage="venv",
                state="the venv is not finished",
                next_command=f"less {self._log}",
            )

    def _pip(self, verb: str) -> list[str]:
        return [self._python, "-m", "pip", verb]


def telling(line: str) -> str | None:
    """What of pip's output a waiting person wants to see: big downloads, and the start of the copying."""
    words = line.split()
    if line.startswith("Installing collected packages:"):
        return f"installing {len(words) - 3} packages"
    if len(words) == 4 and words[0] == "Downloading" and words[-1] in ("MB)", "GB)"):
        size = float(words[2].lstrip("("))
        if size >= 10 or words[-1] == "GB)":
            return f"downloading {words[1].rsplit('/', 1)[-1]} {words[2]} {words[3]}"
    return None
