"""`make demo`: the main job on this machine, told as five scenes, each checked.

1. the sandbox serves the chain (DFLASH) with a real SGLang
2. `rollout sandbox` replaces it by DDTREE, through every gate
3. a payload with a syntax error is aborted at compile
4. a payload that compiles, but whose service cannot start, is rolled back
5. `rollback` brings the chain back

Every scene compares the tree digest, bytecode and what the server generates. Exit code 0: all checks hold.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml
from rich.console import Console
from rich.table import Table

from ddtree_deploy.onhost.venv import bytecode, tree
from ddtree_deploy.sandbox import up

WORKER = "sglang_ddtree/ddtree_worker.py"
PLAYBOOK = "sandbox.yaml"  # short rounds and a low bar for speed: this machine is shared
PROMPT = "The quick brown fox"
# The first line of the worker's constructor, and what the fourth scene puts after it.
START = "        check_sglang_version()"
BOOM = '\n        raise RuntimeError("demo: this worker cannot start")'


@dataclass
class Host:
    """What the demo looks at from outside: the venv's files and the server's answers."""

    folder: Path
    endpoint: str

    def snapshot(self) -> dict[str, str]:
        """The tree of all packages that a payload may touch, without `__pycache__`."""
        found: dict[str, str] = {}
        (site,) = (self.folder / "home" / "venv" / "lib").glob("python3*/site-packages")
        for name in ["sglang", *sorted(p.name for p in site.glob("sglang_ddtree*"))]:
            found |= {f"{name}/{rel}": value for rel, value in tree.snapshot(str(site / name)).items()}
        return found

    def stale(self) -> list[str]:
        """Bytecode of the payload that Python would take for valid although it was made from other source."""
        (site,) = (self.folder / "home" / "venv" / "lib").glob("python3*/site-packages")
        return bytecode.stale([str(p) for p in sorted((site / "sglang_ddtree").rglob("*.py"))])

    def algorithm(self) -> str:
        info = self._get("/server_info")
        return str(info.get("speculative_algorithm") or "none")

    def tokens(self) -> list[int]:
        """Greedy tokens of one fixed prompt."""
        body = {
            "text": PROMPT,
            "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True},
        }
        answer = self._get("/generate", json.dumps(body).encode())
        return [int(t) for t in answer["output_ids"]]

    def _get(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        request = Request(self.endpoint + path, body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as response:
            data: dict[str, Any] = json.load(response)
        return data


@dataclass
class Demo:
    """The scenes' common state: what was checked so far."""

    project: Path
    host: Host
    hosts_file: Path
    console: Console
    checks: list[tuple[str, str, bool]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def scene(self, title: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{title}", align="left")

    def check(self, claim: str, seen: str, holds: bool) -> None:
        self.checks.append((claim, seen, holds))
        mark = "[green]ok[/]" if holds else "[red]NO[/]"
        self.console.print(f"  {mark}  {claim}: {seen}")

    def deploy(self, *arguments: str) -> int:
        """Run the tool as a user would; its output goes straight to the terminal."""
        command = [*arguments, "--hosts", str(self.hosts_file), "--yes"]
        self.console.print(f"[bold]$ ddtree-deploy {' '.join(command)}")
        return subprocess.run(
            [sys.executable, "-m", "ddtree_deploy", *command], cwd=self.project, check=False
        ).returncode

    @property
    def holds(self) -> bool:
        return all(holds for _, _, holds in self.checks)

    def end(self) -> bool:
        """All checks once more, as a table. True if every one held."""
        seconds = time.monotonic() - self.started
        table = Table(title=f"{len(self.checks)} checks in {seconds:.0f} s", show_header=False)
        for claim, seen, holds in self.checks:
            table.add_row("ok" if holds else "[red]NO", claim, seen)
        self.console.print(table)
        self.console.print(
            "the sandbox keeps running: `ddtree-deploy sandbox status`, `ddtree-deploy sandbox down`"
        )
        return self.holds

    def unchanged(self, before: dict[str, str], tokens: list[int]) -> None:
        """The host is exactly as it was, and still says the same."""
        changes = tree.changes(before, self.host.snapshot())
        self.check("tree digest as before", f"{len(before)} paths, {len(changes)} differ", not changes)
        stale = self.host.stale()
        self.check("no valid stale bytecode", f"{len(stale)} files", not stale)
        self.check("it generates, token for token", f"{len(tokens)} tokens", self.host.tokens() == tokens)


@contextmanager
def without(playbooks: Path, *left_out: str) -> Iterator[Path]:
    """The sandbox's playbook less some steps."""
    book = yaml.safe_load((playbooks / PLAYBOOK).read_text())
    book["steps"] = [s for s in book["steps"] if (s if isinstance(s, str) else next(iter(s))) not in left_out]
    with tempfile.TemporaryDirectory(prefix="ddtree-demo-") as folder:
        copy = Path(folder) / "playbooks"
        shutil.copytree(playbooks, copy)
        playbook = copy / PLAYBOOK
        playbook.write_text(yaml.safe_dump(book, sort_keys=False))
        yield playbook


@contextmanager
def broken(payload: Path, marker: str, replacement: str) -> Iterator[Path]:
    """A copy of the payload with one line of the worker replaced. Fails loudly if the line is not there."""
    with tempfile.TemporaryDirectory(prefix="ddtree-demo-") as folder:
        copy = Path(folder) / "payload"
        shutil.copytree(payload, copy, ignore=shutil.ignore_patterns("__pycache__"))
        worker = copy / WORKER
        source = worker.read_text()
        if source.count(marker) != 1:
            raise RuntimeError(f"{WORKER}: expected one line {marker!r}")
        worker.write_text(source.replace(marker, replacement))
        yield copy


def run(project: Path) -> bool:
    """All scenes. True if every check held."""
    started = time.monotonic()
    console = Console(width=110, highlight=False, soft_wrap=True)
    console.rule("[bold]1. The sandbox: a host on this machine that serves the chain (DFLASH)", align="left")
    sandbox = up(
        folder=project / ".sandbox",
        say=lambda text: console.print(text, markup=False),
        fresh_service=True,
    )
    demo = Demo(project, Host(sandbox.folder, sandbox.endpoint), sandbox.hosts_file, console, started=started)
    at_start, chain_tokens = demo.host.snapshot(), demo.host.tokens()
    demo.check("the server runs the chain", demo.host.algorithm(), demo.host.algorithm() == "DFLASH")

    demo.scene("2. rollout sandbox: DDTREE, through every gate")
    code = demo.deploy("rollout", "sandbox")
    demo.check("exit code 0", str(code), code == 0)
    demo.check("/server_info says DDTREE", demo.host.algorithm(), demo.host.algorithm() == "DDTREE")
    same = demo.host.tokens() == chain_tokens
    demo.check("output equals the chain's", f"{len(chain_tokens)} tokens", same)
    with_tree = demo.host.snapshot()
    new = tree.changes(at_start, with_tree)
    demo.check("files of the payload are in place", f"{len(new)} paths", bool(new))
    if not demo.holds:  # the other scenes start from DDTREE
        return demo.end()

    demo.scene("3. A payload with a syntax error: aborted at compile, the server never stopped")
    with (
        broken(project / "payload", "class DDTreeWorker(", "class DDTreeWorker((") as payload,
        # Else this machine's own compile would stop it before the host's.
        without(project / "playbooks", "local") as playbook,
    ):
        code = demo.deploy("rollout", "sandbox", "--payload", str(payload), "--playbook", str(playbook))
    demo.check("exit code 1", str(code), code == 1)
    demo.unchanged(with_tree, chain_tokens)

    demo.scene("4. A payload that compiles, but whose service cannot start: rolled back")
    with (
        broken(project / "payload", START, START + BOOM) as payload,
        # What compares before and after is never reached: it would only measure the service once more.
        without(project / "playbooks", "baseline", "tokens", "acceptance", "benchmark") as playbook,
    ):
        code = demo.deploy("rollout", "sandbox", "--payload", str(payload), "--playbook", str(playbook))
    demo.check("exit code 1", str(code), code == 1)
    demo.unchanged(with_tree, chain_tokens)
    demo.check("/server_info says DDTREE still", demo.host.algorithm(), demo.host.algorithm() == "DDTREE")

    demo.scene("5. rollback: the failed rollouts are undone already; back to before the live one: the chain")
    code = demo.deploy("rollback", "sandbox")
    demo.check("exit code 0", str(code), code == 0)
    demo.check("/server_info says DFLASH", demo.host.algorithm(), demo.host.algorithm() == "DFLASH")
    demo.unchanged(at_start, chain_tokens)

    return demo.end()


if __name__ == "__main__":
    sys.exit(0 if run(Path.cwd()) else 1)
