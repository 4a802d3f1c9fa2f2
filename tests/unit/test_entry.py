"""The console script while its libraries load."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCES = ("ddtree_deploy", "tests", "benchmarks")

# The import of the command line stands still, as it does for seconds on a busy machine, and is struck there.
STRUCK = """
import os, signal, sys

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "ddtree_deploy.cli":
            os.kill(os.getpid(), int(sys.argv[1]))
            signal.pause()

sys.meta_path.insert(0, Slow())
from ddtree_deploy.entry import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.starts
def test_a_signal_while_the_libraries_load_is_one_line_and_130(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "ddtree-deploy: interrupted; nothing was touched\n"


def modules_run_by_name() -> list[tuple[str, str]]:
    """(file, module) wherever this repository starts one of its own modules with `python -m`."""
    found = []
    for file in (path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.List):
                continue
            words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
            for flag, module in pairwise(words):
                if flag == "-m" and isinstance(module, str) and module.split(".")[0] in SOURCES:
                    found.append((str(file.relative_to(ROOT)), module))
    return found


def test_every_module_started_by_its_name_is_one_that_runs() -> None:
    """A module without a main part ends with 0 and has done nothing: the demo once ran that."""
    started = modules_run_by_name()
    assert ("ddtree_deploy/sandbox/demo.py", "ddtree_deploy") in started
    for file, module in started:
        path = ROOT.joinpath(*module.split("."))
        source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        assert source.is_file(), f"{file} starts {module}"
        main = source.name == "__main__.py" or 'if __name__ == "__main__":' in source.read_text()
        assert main, f"{file} starts {module}, which has no main part"


def test_the_constraints_of_an_installation_are_the_versions_that_we_name() -> None:
    tomllib = pytest.importorskip("tomllib")  # not in Python 3.10
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in named["optional-dependencies"].values() for line in lines]
    held = dict(line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().split())
    for wanted in map(Requirement, [*named["dependencies"], *extras]):
        assert wanted.specifier.contains(held[wanted.name.lower()]), wanted


@pytest.mark.starts
def test_help_that_cannot_be_written_is_one_line_and_no_bug() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ddtree_deploy", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "ddtree-deploy: the output is incomplete: No space left on device\n"
