"""A host in a temp folder: a real venv with a small `sglang`, a payload, the real zipapp over pipes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddtree_deploy import onhost
from ddtree_deploy.onhost.state import layout
from ddtree_deploy.onhost.state.journal import read
from ddtree_deploy.onhost.venv import tree
from ddtree_deploy.onhost.wire.protocol import Plan, StepSpec, Target, to_dict

DEADLINE_S = 300.0
UPSTREAM = "def algorithm():\n    return 'chain'\n\n\ndef untouched():\n    return 1\n"
PATCHED = UPSTREAM.replace("chain", "tree")
PATCH = (
    "--- a/sglang/srt/spec.py\n+++ b/sglang/srt/spec.py\n@@ -1,5 +1,5 @@\n def algorithm():\n"
    "-    return 'chain'\n+    return 'tree'\n \n \n def untouched():\n"
)
SMOKE = (
    "import sglang.srt.spec, sglang_ddtree.worker, importlib.metadata as m\n"
    "assert [e.value for e in m.entry_points(group='sglang.srt.plugins')] == ['sglang_ddtree.worker:load']\n"
    "print('ok', sglang.srt.spec.algorithm(), sglang_ddtree.worker.NAME)\n"
)
# As the facts end: a run may begin.
WAIT = """
import sys
sys.path.insert(0, {sources!r})
from onhost.entry.launch import launch
from onhost.entry.receive import line
header = line(0)
sys.exit(launch(header, open({sources!r}, "rb").read()) if header else 0)
"""


def sha(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def zipapp() -> bytes:
    """The runner as the controller packs it: every module of `onhost`, and a `__main__`."""
    buffer = io.BytesIO()
    root = Path(onhost.__file__).parent
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", "from onhost.main import main\nraise SystemExit(main())\n")
        for path in sorted(root.rglob("*.py")):
            archive.write(path, f"onhost/{path.relative_to(root)}")
    return buffer.getvalue()


def tar(files: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name, data in sorted(files.items()):
            raw = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


@dataclass
class Host:
    """`root/venv` with `sglang`; `root/state` for our state."""

    root: Path
    runs: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    runner: bytes = b""
    base: str = sys.executable  # the interpreter that the venv is made of

    def __post_init__(self) -> None:
        venv = self.root / "venv"
        subprocess.run([self.base, "-m", "venv", "--without-pip", str(venv)], check=True)
        self.python = str(venv / "bin" / "python")
        (self.site_dir_of_venv,) = venv.glob("lib/python*/site-packages")
        self.site = Path(os.path.realpath(self.site_dir_of_venv))
        self.package = self.site / "sglang"
        (self.package / "srt").mkdir(parents=True)
        (self.package / "__init__.py").write_text("")
        (self.package / "srt" / "__init__.py").write_text("")
        (self.package / "srt" / "spec.py").write_text(UPSTREAM)
        (self.package / "srt" / "other.py").write_text("x = 1\n")
        os.utime(self.package / "srt" / "spec.py", (1_700_000_000, 1_700_000_000))
        self.state = self.root / "state"
        self.site_dir = layout.site_dir(str(self.state), str(self.site))
        self.runner = self.runner or zipapp()

    # ---- plans ---------------------------------------------------------------------------------------

    def payload(self, name: str = "tree", **changed: str) -> dict[str, str | bytes]:
        """The payload's files; `worker=...` and so on replace blobs."""
        return {
            "blobs/init": "",
            "blobs/worker": changed.get("worker", f"NAME = '{name}'\n"),
            "blobs/spec.patch": changed.get("patch", PATCH),
            "blobs/entry_points": "[sglang.srt.plugins]\nddtree = sglang_ddtree.worker:load\n",
            "blobs/metadata": "Metadata-Version: 2.1\nName: sglang-ddtree\nVersion: 1.0\n",
            "checks/smoke.py": changed.get("smoke", SMOKE),
        }

    def live(self, path: Path) -> str:
        return sha(path.read_bytes()) if path.exists() else ""

    def targets(self, files: dict[str, str | bytes]) -> list[Target]:
        new = {
            "sglang_ddtree/__init__.py": "init",
            "sglang_ddtree/worker.py": "worker",
            "sglang_ddtree-1.0.dist-info/METADATA": "metadata",
            "sglang_ddtree-1.0.dist-info/entry_points.txt": "entry_points",
        }
        made = [
            Target(
                str(self.site / rel),
                f"site:{rel}",
                f"blob:{blob}",
                sha(files[f"blobs/{blob}"]),
                self.live(self.site / rel),
            )
            for rel, blob in new.items()
        ]
        spec = self.package / "srt" / "spec.py"
        patched = Target(
            str(spec), "sglang:srt/spec.py", "patch:spec.patch", sha(PATCHED), self.live(spec), sha(UPSTREAM)
        )
        return [*made, patched]

    def steps(self, *more: StepSpec, smoke: str = "ok tree tree") -> list[StepSpec]:
        """The steps of a rollout of files; `more` come after install."""
        check = {
            "name": "smoke",
            "script": "checks/smoke.py",
            "expect": smoke,
            "timeout_s": 30,
            "argv": False,
        }
        kinds = ["lock", "preflight", "backup", "stage", "compile", "smoke", "install"]
        made = [StepSpec(k, k, 60.0, {"checks": [check]} if k == "smoke" else {}) for k in kinds]
        return [*made, *more, StepSpec("unlock", "unlock", 60.0)]

    def plan(
        self, files: dict[str, str | bytes] | None = None, steps: list[StepSpec] | None = None, **changed: Any
    ) -> tuple[dict[str, Any], bytes]:
        """A rollout of `files` (default: the payload above), and its archive."""
        files = self.payload() if files is None else files
        archive = tar(files)
        self.runs += 1
        values: dict[str, Any] = {
            "protocol": 1,
            # Of no other host: a recovery ends processes by it.
            "run": f"20261129T1745{self.runs:02d}-{sha(str(self.root))[:6]}",
            "action": "rollout",
            "host": "testhost",
            "who": "tester@desk",
            "created": "2026-11-29T17:45:00Z",
            "python": self.python,
            "state_dir": str(self.state),
            "site": str(self.site),
            "package_dir": str(self.package),
            "payload_name": "ddtree",
            "payload_version": "1.0",
            "variant": "v",
            "payload_digest": sha(archive),
            "release": sha("".join(sorted(map(str, files.values())))),
            "targets": self.targets(files) if "targets" not in changed else changed["targets"],
            "steps": steps if steps is not None else self.steps(),
        }
        return to_dict(Plan(**{**values, **changed})), archive

    def rollback(self, undoes: str) -> tuple[dict[str, Any], bytes]:
        """A plan that restores what run `undoes` replaced."""
        installed = layout.read_json(self.site_dir / "installed.json")
        previous = layout.read_json(self.run_dir(undoes) / layout.PREVIOUS) or {}
        targets = [
            Target(path, f["ref"], f"backup:{undoes}", "?", self.live(Path(path)), f["base_sha256"])
            for path, f in installed["files"].items()
        ]
        kinds = ["lock", "preflight", "backup", "stage", "compile", "install", "unlock"]
        return self.plan(
            {},
            [StepSpec(k, k, 60.0) for k in kinds],
            action="rollback",
            undoes=undoes,
            back_to=previous.get("release", ""),
            targets=targets,
        )

    # ---- driving -------------------------------------------------------------------------------------

    def run_dir(self, run: str) -> Path:
        return self.site_dir / "runs" / run

    def launch(
        self,
        plan: dict[str, Any],
        archive: bytes,
        *,
        cut: int | None = None,
        python: str = "",
    ) -> Session:
        """The wait after the facts, with header, plan and payload on stdin.

        `cut`: only so many bytes, then the end.
        """
        raw = json.dumps(plan).encode()
        head = {"run_dir": str(self.run_dir(plan["run"])), "plan": len(raw), "payload": len(archive)}
        data = json.dumps(head).encode() + b"\n" + raw + archive
        sources = self.root / "facts.pyz"
        sources.write_bytes(self.runner)
        argv = [python or self.python, "-I", "-S", "-c", WAIT.format(sources=str(sources))]
        session = self._spawn(argv, plan["run"])
        assert session.process.stdin is not None
        session.process.stdin.write(data if cut is None else data[:cut])
        session.process.stdin.flush()
        if cut is not None:
            session.process.stdin.close()
        return session

    def follow(self, run: str, offset: int = 0) -> Session:
        path = str(self.run_dir(run) / layout.RUNNER)
        return self._spawn(
            [self.python, "-I", "-S", path, "follow", str(self.run_dir(run)), str(offset)], run
        )

    def _spawn(self, argv: list[str], run: str) -> Session:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.processes.append(process)
        return Session(self, process, run)

    def rollout(self, *args: Any, **kwargs: Any) -> Session:
        """Plan, launch, and wait for the end."""
        session = self.launch(*self.plan(*args, **kwargs))
        session.wait()
        return session

    def recover(self) -> tuple[int, list[dict[str, Any]]]:
        """`recover SITE_DIR`, by a runner that is not the run's own."""
        path = self.root / "recover.pyz"
        path.write_bytes(self.runner)
        done = subprocess.run(
            [self.python, "-I", "-S", str(path), "recover", str(self.site_dir)],
            capture_output=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert not done.stderr, done.stderr.decode()
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def journal(self, run: str) -> list[dict[str, Any]]:
        return read(self.run_dir(run) / layout.JOURNAL)[0]

    def runner_pid(self, run: str) -> int:
        return int([e for e in self.journal(run) if e["e"] == "run"][-1]["pid"])

    def kill_runner(self, run: str) -> None:
        """SIGKILL, and wait until its lock is free."""
        os.kill(self.runner_pid(run), signal.SIGKILL)
        from ddtree_deploy.onhost.state.held import is_held

        until(lambda: not is_held(self.run_dir(run) / layout.ALIVE))

    def digest(self) -> str:
        """Of the whole site-packages, as an undo must restore it."""
        return tree.digest(str(self.site))

    def ask(self, code: str) -> str:
        """What the venv's Python prints."""
        done = subprocess.run([self.python, "-c", code], capture_output=True, check=True, text=True)
        return done.stdout.strip()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            if process.stdin is not None and process.stdin.closed:
                process.stdin = None
            process.communicate()
        for journal in self.site_dir.glob("runs/*/journal.jsonl"):
            for event in read(journal)[0]:
                if event["e"] == "run":
                    words = Path(f"/proc/{event['pid']}/cmdline")
                    if words.exists() and os.fsencode(journal.parent) in words.read_bytes():
                        os.kill(event["pid"], signal.SIGKILL)


@dataclass
class Session:
    """One connected controller: the lines it has seen, and its end."""

    host: Host
    process: subprocess.Popen[bytes]
    run: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    _rest: bytes = b""

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def until(self, **wanted: Any) -> dict[str, Any]:
        """The first event, from now on, with these values."""
        end = time.monotonic() + DEADLINE_S
        seen = 0
        while time.monotonic() < end:
            for event in self.lines[seen:]:
                if all(event.get(k) == v for k, v in wanted.items()):
                    return event
            seen = len(self.lines)
            if not self._read(end):
                break
        raise AssertionError(f"no event {wanted}: {self.lines[-5:]} {self._errors()}")

    def _read(self, end: float) -> bool:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
        data = os.read(fd, 65536) if ready else b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [json.loads(line) for line in lines]
        return bool(data)

    def wait(self) -> int:
        """Read to the end of the stream; the exit status."""
        end = time.monotonic() + DEADLINE_S
        while self._read(end):
            pass
        return self.process.wait(max(0.1, end - time.monotonic()))

    def _errors(self) -> str:
        self.process.kill()
        log = self.host.run_dir(self.run) / "logs" / "runner.log"
        assert self.process.stderr is not None
        return self.process.stderr.read().decode() + (log.read_text() if log.exists() else "")

    @property
    def end(self) -> dict[str, Any]:
        ends = [e for e in self.lines if e["e"] in ("end", "lost")]
        if not ends:
            raise AssertionError(f"no end: {self.lines[-5:]} {self._errors()}")
        return ends[-1]

    def verdicts(self) -> dict[str, str]:
        return {e["step"]: e["verdict"] for e in self.lines if e["e"] == "verdict"}


def until(condition: Any) -> None:
    """Wait for a condition, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.01)
