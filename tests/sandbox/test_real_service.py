"""A sandbox with the real SGLang: up, up again, seen over SSH, killed half-way, down.

It has a folder and ports of its own, and borrows venv and models of the checkout's `.sandbox`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import asyncssh
import pytest

from ddtree_deploy.sandbox import Sandbox, down, look, processes, service, up
from ddtree_deploy.sandbox.layout import Layout
from tests.need import lacking
from tests.ports import free_port

pytestmark = pytest.mark.sglang
PROJECT = Path(__file__).parents[2]
PROMPTS = [json.loads(line) for line in (PROJECT / "playbooks" / "prompts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    lender = Layout.at(PROJECT / ".sandbox")
    if look(lender.folder).venv != "ready" or not (lender.models / "made-from").exists():
        lacking("the checkout's sandbox is not made: ddtree-deploy sandbox up", "SGLANG")
    layout = Layout.at(tmp_path_factory.mktemp("sandbox"))
    layout.home.mkdir()
    layout.venv.symlink_to(lender.venv)
    layout.models.symlink_to(lender.models)
    try:
        yield up(folder=layout.folder, say=print, ssh_port=free_port(), http_port=free_port())
    finally:
        down(folder=layout.folder, say=print)
        assert service.members(layout) == []


def generate(sandbox: Sandbox, text: str, tokens: int = 64) -> dict[str, object]:
    parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = json.dumps({"text": text, "sampling_params": parameters}).encode()
    request = Request(f"{sandbox.endpoint}/generate", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as response:
        answer: dict[str, object] = json.load(response)
    return answer


def test_the_service_is_the_chain(sandbox: Sandbox) -> None:
    assert (sandbox.service, sandbox.venv) == ("DFLASH", "ready")
    assert look(sandbox.folder) == sandbox


def test_a_second_up_keeps_everything(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DDTREE_SANDBOX_SSH_PORT", "DDTREE_SANDBOX_HTTP_PORT"):  # those of a sandbox beside this one
        monkeypatch.delenv(name, raising=False)
    layout, said = Layout.at(sandbox.folder), list[str]()
    before = service.members(layout)
    assert up(folder=sandbox.folder, say=said.append) == sandbox
    assert service.members(layout) == before
    assert [line.split(",")[0] for line in said[:-1]] == [
        "venv: kept", "models: kept", "ssh: kept", "service: kept",
    ]  # fmt: skip


def test_the_half_trained_draft_is_right_now_and_then(sandbox: Sandbox) -> None:
    tokens = steps = 0
    for prompt in PROMPTS:
        answer = generate(sandbox, prompt["prompt"])
        meta = answer["meta_info"]
        assert isinstance(meta, dict)
        tokens += meta["completion_tokens"]
        steps += meta["spec_verify_ct"]
    assert tokens == 64 * len(PROMPTS)
    assert 1.3 < tokens / steps < 1.8


def test_over_ssh_it_looks_like_a_host(sandbox: Sandbox) -> None:
    layout = Layout.at(sandbox.folder)

    async def go() -> str:
        async with asyncssh.connect(
            "127.0.0.1",
            sandbox.ssh_port,
            client_keys=[str(layout.keys / "id")],
            known_hosts=str(layout.known_hosts),
            agent_path=None,
            config=None,
        ) as connection:
            script = "import importlib.util as u; print(u.find_spec('sglang').origin)"
            done = await connection.run(f'~/venv/bin/python3 -I -c "{script}"', check=True)
            return str(done.stdout)

    origin = asyncio.run(asyncio.wait_for(go(), 300))
    assert origin.strip().startswith(str(layout.home / "venv" / "lib"))


def test_down_ends_a_service_whose_head_was_killed(sandbox: Sandbox) -> None:
    """The scheduler is reparented when the launcher is killed, and would keep memory and ports."""
    layout = Layout.at(sandbox.folder)
    head = service.launched(layout)
    assert head is not None
    others = [process for process in service.members(layout) if process != head]
    assert len(others) >= 2
    for process in others:
        os.kill(process.pid, signal.SIGSTOP)
    os.kill(head.pid, signal.SIGKILL)
    assert processes.wait_ended(head, 60)
    for process in others:
        os.kill(process.pid, signal.SIGCONT)
    down(folder=sandbox.folder, say=print)
    assert not any(process.alive for process in others)
    found = look(sandbox.folder)
    assert (found.ssh, found.service) == ("", "")
