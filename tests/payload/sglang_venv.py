"""The SGLang venv that these tests use, and real servers in it.

``DDTREE_SGLANG_PYTHON`` names its Python; without it, the sandbox's venv in this checkout is used.
``DDTREE_SGLANG_PYTHONPATH`` is added to its PYTHONPATH, for a venv whose CPU stand-ins are not installed.
``DDTREE_TEST_MODELS`` names the folder of the tiny models (default: ``.sandbox/models``, made if missing).
``DDTREE_TEST_FIRST_PORT`` moves the hundred ports from which the servers take theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.need import lacking
from tests.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
PAYLOAD = REPOSITORY / "payload"
MODELS_SCRIPT = REPOSITORY / "ddtree_deploy" / "sandbox" / "models.py"
MODELS = Path(os.environ.get("DDTREE_TEST_MODELS") or REPOSITORY / ".sandbox" / "models")
PROMPTS = [
    json.loads(line)["prompt"]
    for line in (REPOSITORY / "playbooks" / "prompts.jsonl").read_text().splitlines()
]
SETUP_COMMAND = "ddtree-deploy sandbox up   # or: DDTREE_SGLANG_PYTHON=/path/to/venv/bin/python"
START_DEADLINE_S = 1200
REQUEST_DEADLINE_S = 240


def sglang_python() -> str:
    """The venv's Python. Without one the test is skipped, or failed if DDTREE_REQUIRE_SGLANG is set."""
    default = REPOSITORY / ".sandbox" / "home" / "venv" / "bin" / "python"
    python = os.environ.get("DDTREE_SGLANG_PYTHON") or str(default)
    if not Path(python).exists():
        reason = f"no SGLang venv at {python}; set it up with: {SETUP_COMMAND}"
        lacking(reason, "SGLANG")
    return python


def sglang_release() -> str:
    """The version of SGLang in the venv."""
    (info,) = Path(sglang_python()).parent.parent.glob("lib/python3*/site-packages/sglang-[0-9]*.dist-info")
    return info.name.removeprefix("sglang-").removesuffix(".dist-info")


def sglang_environment(*python_path: Path, **variables: str) -> dict[str, str]:
    """Environment of a process in the venv, with ``python_path`` in front."""
    paths = [str(path) for path in python_path]
    if extra := os.environ.get("DDTREE_SGLANG_PYTHONPATH"):
        paths.append(extra)
    ours = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**os.environ, **ours, **variables}


def install_as_wheel(folder: Path, package: Path, name: str, entry_point: str) -> None:
    """Copy ``package`` into ``folder``, with a ``.dist-info`` that names one SGLang plugin entry point."""
    module = package.name.removesuffix(".py")
    if package.is_dir():
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(package, folder)
    info = folder / f"{module}-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {entry_point}\n")


def ensure_models() -> None:
    """Make the tiny target and drafts, once."""
    if all((MODELS / name / "config.json").exists() for name in ("target", "draft_half", "draft_full")):
        return
    MODELS.mkdir(parents=True, exist_ok=True)
    _run_models(str(MODELS_SCRIPT), str(MODELS))


def ensure_hybrid() -> Path:
    """Make the tiny hybrid target beside the other, once. Returns its folder."""
    ensure_models()
    hybrid = MODELS / "hybrid"
    if not (hybrid / "config.json").exists():
        code = "import sys, pathlib, models; models.make_hybrid(*map(pathlib.Path, sys.argv[1:]))"
        _run_models("-c", code, str(MODELS / "target"), str(hybrid))
    return hybrid


def _run_models(*arguments: str) -> None:
    done = subprocess.run(
        [sglang_python(), *arguments],
        env=sglang_environment(MODELS_SCRIPT.parent),
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"models.py failed:\n{done.stdout}\n{done.stderr}"


class Server:
    """A real SGLang server on loopback, started in its own session and ended with it."""

    def __init__(self, name: str, log: Path, python_path: list[Path], arguments: list[str], **variables: str):
        self.name, self.log = name, log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            sglang_python(), "-m", "sglang.launch_server",
            "--model-path", str(MODELS / "target"), "--device", "cpu", "--dtype", "float32",
            "--host", "127.0.0.1", "--port", str(self.port), "--attention-backend", "cpu_tree",
            "--mem-fraction-static", "0.1", "--max-total-tokens", "8192", "--max-running-requests", "8",
            "--disable-cuda-graph", "--sleep-on-idle", *arguments,
        ]  # fmt: skip
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=sglang_environment(*python_path, **variables),
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"{self.name} ended with {self.process.returncode} at start:\n{self.log_tail()}")
            with contextlib.suppress(OSError):
                if "fired up and ready to roll" in self.log.read_text(errors="replace"):
                    return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.25)
        pytest.fail(f"{self.name} was not ready within {START_DEADLINE_S} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """End the server's whole session; its schedulers are children in the same group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def request(self, path: str, body: object = None) -> tuple[int, object]:
        """POST ``body`` (GET without one). Returns the status and the decoded answer, also for errors."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_DEADLINE_S) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        except OSError as error:
            pytest.fail(f"{self.name} {path}: {error}\n{self.log_tail(80)}")
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def generate(self, prompts: list[str], *, batch: int = 8, **sampling: object) -> list[dict]:
        """Answers of ``prompts``, sent ``batch`` at a time; greedy unless ``sampling`` says otherwise."""
        parameters = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True, **sampling}
        answers: list[dict] = []
        for start in range(0, len(prompts), batch):
            body = {"text": prompts[start : start + batch], "sampling_params": parameters}
            status, answer = self.request("/generate", body)
            assert status == 200, f"{self.name}: {status} {answer}\n{self.log_tail()}"
            answers.extend(answer)
        return answers


def output_ids(answers: list[dict]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def accept_length(answers: list[dict]) -> float:
    """Tokens per verify step over all answers."""
    tokens = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return tokens / sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
