"""The gates' scripts: they pass on the payload as it is, and each fails on the payload broken its way."""

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import sglang.srt.managers.scheduler  # noqa: F401  (once, before the forks)
from conftest import REPOSITORY
from forked import run_script
from sglang.srt import plugins

CHECKS = REPOSITORY / "payload" / "checks"
MARKER = "ddtree_import_ok 5 [0, 1] 777 None"
assert not plugins._plugins_loaded, "run these tests in a process of their own: each fork loads the plugins"
ENTRY_POINTS = "[sglang.srt.plugins]\nddtree = sglang_ddtree.plugin:register\n"
MODELS = os.environ.get("DDTREE_TEST_MODELS", ".sandbox/models")
TARGET = ["--model-path", f"{MODELS}/target", "--device", "cpu"]
LAUNCH = [
    *TARGET,
    *("--attention-backend", "cpu_tree", "--speculative-algorithm", "DDTREE"),
    *("--speculative-draft-model-path", f"{MODELS}/draft_half"),
]
V1 = importlib.util.find_spec("sglang.srt.speculative.dflash_worker") is not None
WORKER = "v1/worker.py" if V1 else "ddtree_worker.py"


@pytest.fixture
def staged(tmp_path):
    """A staged payload: a copy of the package and its .dist-info."""
    shutil.copytree(REPOSITORY / "payload" / "sglang_ddtree", tmp_path / "sglang_ddtree")
    info = tmp_path / "sglang_ddtree-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-ddtree\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def smoke(staged):
    return run_script(CHECKS / "ddtree_smoke.py", python_path=[staged])


def edit(file: Path, old: str, new: str):
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file.name}"
    file.write_text(text.replace(old, new))


def gpu_selftest(staged, *arguments):
    """In a process of its own: Triton's interpreter is chosen when Triton is imported."""
    environment = {**os.environ, "PYTHONPATH": str(staged)}
    script = [sys.executable, str(CHECKS / "gpu_selftest.py"), *arguments]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_gpu_selftest_passes_on_the_payload_by_the_interpreter(staged):
    done = gpu_selftest(staged, "--interpret")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "gpu_selftest_ok"), done.stderr
    assert str(staged) in done.stdout and " us" in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("build.py", "hit = hit & (high == best_high[:, None])\n", "pass\n", "build, "),
        ("compile.py", "+ node * prefix + prefix", "+ node * prefix", "FULL_MASK, mask: "),
        ("walk.py", "(token == choice[:, None])", "(token >= choice[:, None])", "walk, "),
    ],
)
def test_the_gpu_selftest_fails_on_a_broken_kernel_and_names_it(staged, file, old, new, reason):
    edit(staged / "sglang_ddtree" / "kernels" / file, old, new)
    done = gpu_selftest(staged, "--interpret")
    said = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "gpu_selftest_ok" not in done.stdout
    assert said.startswith("gpu_selftest: ") and reason in said and " instead of " in said, done.stderr


def test_without_a_gpu_the_gpu_selftest_does_not_pass(staged):
    done = gpu_selftest(staged)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "gpu_selftest: no GPU: torch.cuda.is_available() is False"
    )


def test_the_smoke_test_passes_on_the_payload(staged):
    outcome = smoke(staged)
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[-1] == MARKER
    assert str(staged) in outcome.out, "it must have imported the staged package"


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        (
            WORKER,
            "    def _build_ddtree_verify_input(",
            "    def _build_verify_input(",
            "has no DDTreeWorker._build_ddtree_verify_input",
        ),
        ("plugin.py", "    spec_algorithm.register_algorithm()\n", "", "DDTREE is not registered"),
        (
            "tree_reference.py",
            "(*path[:-1], rank + 1), parent))",
            "(*path[:-1], rank + 1), ROOT if len(path) > 1 else parent))".replace("ROOT", "0"),
            "",
        ),
        ("tree_reference.py", "path, parent = heapq.heappop(heap)", "path, parent = heap.pop()", ""),
        (
            "ddtree_utils.py",
            "return accepted, choices[node]",
            "return accepted, choices[ROOT]",
            "accepted and bonus",
        ),
        (
            "versions.py",
            "\n\n\nclass",
            "\nTESTED_SGLANG_VERSIONS = ('0.5.1',)\n\n\nclass",
            f"tested with SGLang 0.5.1 only; found {metadata.version('sglang')}",
        ),
        (
            "hooks.py",
            '("req",),' if V1 else '("req", "enable_overlap"),',
            '("request",),',
            f"validate_dflash_request takes ({'req' if V1 else 'req, enable_overlap'})",
        ),
        (WORKER, "class DDTreeWorker(", "class DDTreeWorker((", "SyntaxError"),
    ],
    ids=[
        "symbol missing",
        "not registered",
        "wrong parent",
        "wrong order",
        "wrong bonus",
        "untested SGLang",
        "hook does not fit",
        "syntax error",
    ],
)
def test_the_smoke_test_fails_on_a_broken_payload(staged, file, old, new, reason):
    edit(staged / "sglang_ddtree" / file, old, new)
    outcome = smoke(staged)
    assert outcome.status == 1
    assert MARKER not in outcome.out
    assert outcome.reason.startswith("ddtree_smoke: ") and reason in outcome.reason, outcome.err


def test_the_smoke_test_fails_without_the_entry_point(staged):
    shutil.rmtree(staged / "sglang_ddtree-0.1.0.dist-info")
    outcome = smoke(staged)
    assert outcome.status == 1
    assert "no entry point 'ddtree'" in outcome.reason


def parse(staged, *arguments):
    return run_script(CHECKS / "parse_argv.py", "--", *arguments, python_path=[staged])


def test_a_ddtree_command_parses(staged):
    outcome = parse(
        staged, *LAUNCH, "--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "8"
    )
    assert (outcome.status, outcome.out.splitlines()[-1]) == (0, "parse_argv_ok"), outcome.err


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (["/v/bin/python3", "-m", "sglang.launch_server", "--port", "1"], ["--port", "1"]),
        (["/v/bin/python3", "-u", "-m", "sglang.launch_server"], []),
        (["/v/bin/python", "/src/sglang/launch_server.py", "--port", "1"], ["--port", "1"]),
        (["/v/bin/sglang", "serve", "--port", "1"], ["--port", "1"]),
        (["--port", "1"], ["--port", "1"]),
        ([], []),
        (["/bin/sh", "-c", "exec sglang"], None),
    ],
)
def test_the_arguments_are_found_in_every_way_to_start_a_server(command, arguments):
    specification = importlib.util.spec_from_file_location("parse_argv", CHECKS / "parse_argv.py")
    parse_argv = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(parse_argv)
    assert parse_argv.server_arguments(command) == arguments


def test_a_whole_command_line_parses(staged):
    outcome = parse(staged, "/venv/bin/python3", "-m", "sglang.launch_server", *LAUNCH)
    assert (outcome.status, outcome.out.splitlines()[-1]) == (0, "parse_argv_ok"), outcome.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([*LAUNCH, "--speculative-ddtree-budget", "0"], "--speculative-ddtree-budget must be at least 1"),
        ([*LAUNCH, "--speculative-ddtree-budget", "many"], "invalid int value: 'many'"),
        ([*LAUNCH, "--pp-size", "8"], "--pp-size"),
        ([*TARGET, "--speculative-algorithm", "DDTREE"], "needs --speculative-draft-model-path"),
        ([*TARGET, "--speculative-algorithm", "DDTRE"], "DDTRE"),
        ([*TARGET, "--speculative-ddtree-budget", "8"], "needs --speculative-algorithm DDTREE"),
        (["--model-path", "m", "--no-such-flag"], "--no-such-flag"),
        ([], "--model-path"),
    ],
)
def test_a_command_that_cannot_start_is_refused_in_one_line(staged, arguments, reason):
    outcome = parse(staged, *arguments)
    assert outcome.status == 1
    assert outcome.reason.startswith("parse_argv: ") and reason in outcome.reason, outcome.err


def test_a_command_for_ddtree_without_the_plugin_is_refused(staged):
    shutil.rmtree(staged / "sglang_ddtree-0.1.0.dist-info")
    outcome = parse(staged, *LAUNCH)
    assert outcome.status == 1
    assert "DDTREE" in outcome.reason
