"""The next command to type works as it stands: it has the flags that were given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy import cli
from ddtree_deploy.running import next_command

CASES = {
    "no flags": (["rollout", "a"], "next: ddtree-deploy plan a", "next: ddtree-deploy plan a"),
    "those that the command takes": (
        ["rollout", "a", "--hosts", "h.yaml", "--payload=p 2", "--playbook", "b.yaml", "--yes"],
        "next: ddtree-deploy rollout a --yes",
        "next: ddtree-deploy rollout a --hosts h.yaml --payload 'p 2' --playbook b.yaml --yes",
    ),
    "not those that it does not take": (
        ["rollout", "a", "--hosts", "h.yaml", "--payload", "p", "--playbook", "b.yaml"],
        "ddtree-deploy attach a, or end it: ddtree-deploy unlock a --force",
        "ddtree-deploy attach a --hosts h.yaml, or end it: ddtree-deploy unlock a --hosts h.yaml --force",
    ),
    "not the playbook of the other action": (
        ["rollout", "a", "--playbook", "b.yaml"],
        "ddtree-deploy rollback a",
        "ddtree-deploy rollback a",
    ),
    "a command without a target": (
        ["rollback", "--hosts", "h.yaml"],
        "next: ddtree-deploy rollback --yes",
        "next: ddtree-deploy rollback --hosts h.yaml --yes",
    ),
    "a command without files": (
        ["show", "--hosts", "h.yaml"],
        "next: ddtree-deploy --version",
        "next: ddtree-deploy --version",
    ),
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    next_command.remember([])


@pytest.mark.parametrize("name", CASES)
def test_flags_of_this_command_are_in_the_next(name: str) -> None:
    arguments, text, expected = CASES[name]
    next_command.remember(arguments)
    assert next_command.typed(text) == expected


def test_an_error_names_the_files_that_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = Path(__file__).parents[2]
    hosts = tmp_path / "h.yaml"
    hosts.write_text("hosts:\n  a: {address: 127.0.0.1, python: /v/bin/python}\n")
    monkeypatch.chdir(repo)
    assert cli.run(["rollout", "a", "--hosts", str(hosts), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.err.endswith(f"next: ddtree-deploy rollout a --hosts {hosts} --yes\n")
    error = json.loads(printed.out)
    assert (error["e"], error["exit"]) == ("error", 2) and "--yes" in error["reason"]
