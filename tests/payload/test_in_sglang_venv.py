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


def test_all_tests_pass_under_the_sglang_venvs_python(tmp_path):
    python = sglang_python()
    ensure_models()
    install_as_wheel(tmp_path, PAYLOAD / "sglang_ddtree", "ddtree", "sglang_ddtree.plugin:register")
    tests = Path(__file__).parent / "in_sglang_venv"
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        check=False,
        cwd=REPOSITORY,
        env=sglang_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    print(done.stdout[-6000:])
    assert done.returncode == 0
    assert " passed" in done.stdout and "skipped" not in done.stdout
