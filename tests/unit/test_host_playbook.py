"""Which playbook a rollout takes: the one given, else the hosts' own, else the usual."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.commands.inputs import load_rollout
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory import Host

REPO = Path(__file__).parents[2]
BOOK = "schema: 1\nname: {name}\naction: rollout\nsteps: [lock, preflight, backup, stage, install, unlock]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "playbooks").mkdir()
    for name in ("rollout", "own", "given"):
        (tmp_path / "playbooks" / f"{name}.yaml").write_text(BOOK.format(name=name))
    return tmp_path / "playbooks"


def host(name: str, playbook: Path | None = None) -> Host:
    return Host(name, "127.0.0.1", "/v/bin/python", playbook=playbook)


def test_the_hosts_own_playbook_is_taken_unless_one_is_given(folder: Path) -> None:
    plain, own = host("a"), host("b", folder / "own.yaml")
    assert load_rollout(None, [plain]).name == "rollout"
    assert load_rollout(None, [own]).name == "own"
    assert load_rollout(folder / "given.yaml", [plain, own]).name == "given"


def test_a_group_whose_hosts_differ_has_to_be_told(folder: Path) -> None:
    with pytest.raises(InputError, match=r"different playbooks .*own\.yaml.*rollout\.yaml"):
        load_rollout(None, [host("a"), host("b", folder / "own.yaml")])


def test_a_playbook_that_is_not_there(folder: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_rollout(None, [host("b", folder / "nowhere.yaml")])
