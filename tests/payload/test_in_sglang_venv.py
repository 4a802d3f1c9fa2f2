"""Runs ``in_sglang_venv/``, the tests that import torch and SGLang, under the SGLang venv's Python."""

import subprocess
from pathlib import Path

import pytest
from sglang_venv import (
    PAYLOAD,
    REPOSITORY,
    ensure_models,
    install_as_wheel,
    sglang_environment,
    sglang_python,
)

pytestmark = pytest.mark.sglang


HERE = Path(__file__).parent / "in_sglang_venv"
# Its forks need a process into which no plugin was loaded yet.
APART = "test_checks.py"
# They need Triton's interpreter, which is chosen when Triton is imported.
INTERPRETED = sorted(file.name for file in HERE.glob("test_kernels*.py"))
NEWER_LINE = "test_cuda_graphs.py"  # of the V2 worker
V1_WORKER = "lib/python3*/site-packages/sglang/srt/speculative/dflash_worker.py"
OTHERS = sorted(file.name for file in HERE.glob("test_*.py") if file.name not in (APART, *INTERPRETED))


@pytest.mark.parametrize("files", [[APART], INTERPRETED, OTHERS], ids=["checks", "kernels", "the rest"])
def test_the_tests_pass_under_the_sglang_venvs_python(tmp_path, files):
    python = sglang_python()
    if any(Path(python).parent.parent.glob(V1_WORKER)):
        files = [name for name in files if name != NEWER_LINE]
    ensure_models()
    if files != [APART]:
        install_as_wheel(tmp_path, PAYLOAD / "sglang_ddtree", "ddtree", "sglang_ddtree.plugin:register")
    variables = {"TRITON_INTERPRET": "1"} if files == INTERPRETED else {}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / name) for name in files)],
        check=False,
        cwd=REPOSITORY,
        env=sglang_environment(tmp_path, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    print(done.stdout[-6000:])
    assert done.returncode == 0
    assert " passed" in done.stdout and "skipped" not in done.stdout
