"""Input that is not good meets no host: all of it is read and checked before anybody is called."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ddtree_deploy import cli

pytestmark = pytest.mark.starts  # a server that counts who calls

ROOT = Path(__file__).parents[2]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


@pytest.fixture
def folder(listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a rollout to `a` would call the listener."""
    monkeypatch.chdir(tmp_path)
    for name in ("payload", "playbooks"):
        (tmp_path / name).symlink_to(ROOT / name)
    write(tmp_path, a=host(listener))
    return tmp_path


def host(listener: socket.socket, **more: object) -> dict[str, object]:
    port = listener.getsockname()[1]
    return {"address": "127.0.0.1", "port": port, "python": "/v/bin/python", "connect_timeout": "1s", **more}


def write(folder: Path, **hosts: object) -> None:
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"hosts": hosts}))


def called(listener: socket.socket) -> bool:
    try:
        peer, _ = listener.accept()
    except BlockingIOError:
        return False
    peer.close()
    return True


def test_a_rollout_whose_input_is_good_calls_the_host(folder: Path, listener: socket.socket) -> None:
    assert cli.run(["rollout", "a", "--yes"]) == 4
    assert called(listener)


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"connect_timeout": "five"},
        {"service": {"systemd": "sglang.service", "url": "http://127.0.0.1:1", "api_key": {"env": "KEY"}}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_hosts_file_with_a_mistake(
    wrong: dict[str, object],
    folder: Path,
    listener: socket.socket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KEY", raising=False)
    write(folder, a=host(listener, **wrong))
    for command in ("rollout", "rollback"):
        assert cli.run([command, "a", "--yes"]) == 2
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ddtree-deploy: ")]
        assert len(told) == 1 and next(iter(wrong)) in told[0]
    assert not called(listener)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nobody", "--yes"],
        ["a", "--yes", "--payload", "nowhere"],
        ["a", "--yes", "--playbook", "nowhere.yaml"],
        ["a", "--yes", "--playbook", "playbooks/rollback.yaml"],
        ["a"],
    ],
)
def test_other_input_with_a_mistake(
    arguments: list[str], folder: Path, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["rollout", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not called(listener)


# The payload is being read, and the command is struck there.
STRUCK = """
import os, signal, sys
from ddtree_deploy.commands import inputs

number = int(sys.argv.pop())

def struck(given):
    os.kill(os.getpid(), number)
    signal.pause()

inputs.load_payload = struck
from ddtree_deploy.entry import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_start_is_one_line_and_130(
    number: signal.Signals, folder: Path, listener: socket.socket
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, "rollout", "a", "--yes", str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "ddtree-deploy: interrupted; nothing was touched\n"
    assert not called(listener)
