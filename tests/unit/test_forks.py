"""The fault matrix runs commands as forks of one process: they have to behave as fresh ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.lab.matrix.commands import Forked, fork

pytestmark = pytest.mark.starts

Process = Forked | subprocess.Popen[str]


def fresh(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from ddtree_deploy.entry import main; sys.exit(main())",
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )


def ended(process: Process) -> tuple[int, str, str]:
    assert process.stdout is not None and process.stderr is not None
    said = process.stdout.read(), process.stderr.read()
    return process.wait(120), *said


@pytest.mark.parametrize("arguments", [["--version"], ["status"], ["status", "nobody", "--json"]])
def test_it_says_and_returns_the_same(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"hosts": {"box": entry(1)}}))
    assert ended(fork(arguments, tmp_path)) == ended(fresh(arguments, tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("start", [fork, fresh])
def test_a_signal_to_its_session_meets_it_alike(
    start: Callable[[list[str], Path], Process], number: signal.Signals, tmp_path: Path
) -> None:
    """It waits for the greeting of a server that has none."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        hosts = {"box": entry(silent.getsockname()[1])}
        (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"hosts": hosts}))
        running = start(["status", "box", "--json"], tmp_path)
        connection, _ = silent.accept()
        assert os.getsid(running.pid) == os.getpgid(running.pid) == running.pid
        assert Path(f"/proc/{running.pid}/fd/0").readlink() == Path(os.devnull)
        os.killpg(running.pid, number)
        code, _, err = ended(running)
        connection.close()
    assert code == (-9 if number == signal.SIGKILL else 130)
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


def entry(port: int) -> dict[str, object]:
    return {"address": "127.0.0.1", "port": port, "user": "root", "python": "/usr/bin/python3"}
