"""Payload tests. ``in_sglang_venv`` needs torch, so the controller's pytest leaves it to a subprocess."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

# The payload too: what of it is plain Python is tested without an SGLang venv.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "payload")]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["in_sglang_venv/*"]
V1_WORKER = "lib/python3*/site-packages/sglang/srt/speculative/dflash_worker.py"
if any(Path(os.environ.get("DDTREE_SGLANG_PYTHON", "/")).parent.parent.glob(V1_WORKER)):
    # On SGLang 0.5.13 a budget schedule is refused, no trees are on the device, and the Triton backend was
    # not tried on a CPU.
    collect_ignore_glob += [
        "test_budget_schedule.py",
        "test_kernels_server.py",
        "test_triton_backend.py",
    ]


@pytest.fixture(scope="session")
def v2_only():
    """For what DDTREE refuses on SGLang 0.5.13."""
    from sglang_venv import sglang_python

    packages = Path(sglang_python()).parent.parent / "lib"
    if any(packages.glob("python3*/site-packages/sglang/srt/speculative/dflash_worker.py")):
        pytest.skip("DDTREE refuses it on SGLang 0.5.13")


@pytest.fixture(scope="session")
def payload(tmp_path_factory):
    """A folder for PYTHONPATH that holds the payload as the host would have it."""
    from sglang_venv import PAYLOAD, ensure_models, install_as_wheel, sglang_python

    sglang_python()
    ensure_models()
    folder = tmp_path_factory.mktemp("payload")
    install_as_wheel(folder, PAYLOAD / "sglang_ddtree", "ddtree", "sglang_ddtree.plugin:register")
    return folder


@pytest.fixture(scope="session")
def start(payload, tmp_path_factory):
    """Start a server and stop whatever server the last test left: two cores hold one at a time."""
    from sglang_venv import Server

    running = {}

    def start_server(name, arguments, *python_path, **variables):
        if name not in running:
            for server in running.values():
                server.stop()
            log = tmp_path_factory.mktemp("logs") / f"{name}.log"
            running.clear()
            running[name] = Server(name, log, [payload, *python_path], arguments, **variables)
            running[name].wait_until_ready()
        return running[name]

    yield start_server
    for server in running.values():
        server.stop()


@pytest.fixture(scope="session")
def reference(payload, tmp_path_factory):
    """Greedy continuations of all prompts by transformers alone."""
    from serving import NEW_TOKENS, greedy_reference
    from sglang_venv import PROMPTS

    return greedy_reference(PROMPTS, NEW_TOKENS, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="session")
def controls(tmp_path_factory):
    """The folder of the controls plugin, for PYTHONPATH, and the file that steers it."""
    from serving import HERE
    from sglang_venv import install_as_wheel

    folder = tmp_path_factory.mktemp("controls")
    install_as_wheel(folder, HERE / "controls" / "ddtree_controls.py", "controls", "ddtree_controls:register")
    return folder, folder / "controls.json"
