"""Files that a fuzzer finds, not a user: still one clear line, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.commands import inputs
from ddtree_deploy.commands.inputs import load_hosts
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import playbook
from ddtree_deploy.inputs.yaml import document
from ddtree_deploy.inputs.yaml.values import parse_duration, parse_size
from tests.unit.planning import PLAYBOOK, PROMPTS, ROLLBACK, write


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: !!bool maybe\n", ":2: b: maybe cannot be read as a value"),
        ("a: 1\nb: !!timestamp 2020\n", ":2: b: 2020 cannot be read as a value"),
        ("a: 1\n!!float abc: 2\n", ":2: "),
        ('a: 1\nb: "\\ud800"\n', ":2: b: the character \\ud800 is not allowed"),
        ('a: 1\nb: "x\\0"\n', ":2: b: the character \\u0000 is not allowed"),
        ('a: 1\n"\\0": 2\n', ":2: "),
        ("a: 1\nb: " + "[" * 3000 + "]" * 3000 + "\n", ":2: nested too deeply"),
    ],
)
def test_one_line_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        document.load(file)
    assert f"{file}{says}" in refused.value.render()


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(InputError, match="larger than"):
        document.load("/dev/zero")


@pytest.mark.parametrize("text", ["5m\n", "9" * 400 + "s", "400d", "\u0661s"])
def test_durations_that_nobody_can_wait(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|year|size|disk"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "1" + "0" * 310 + "B", "1GiB\n"])
def test_sizes_that_no_disk_has(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|year|size|disk"):
        parse_size(text)


def test_a_name_that_ends_in_a_line_end_is_no_name(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text('hosts:\n  a: {address: h, python: /p, user: "root\\n"}\n')
    with pytest.raises(InputError, match="not a user name"):
        load_hosts(file)


@pytest.mark.parametrize("name", ["x" * 5000, "''"])
def test_a_prompts_file_that_cannot_be_opened_has_the_line_of_the_playbook(name: str, tmp_path: Path) -> None:
    write(tmp_path, {"prompts.jsonl": PROMPTS})
    lines = PLAYBOOK.replace("baseline: {", f"baseline: {{prompts: {name}, ")
    assert lines != PLAYBOOK
    with pytest.raises(InputError) as refused:
        playbook.load(write(tmp_path, {"p.yaml": lines}) / "p.yaml")
    assert refused.value.file == str(tmp_path / "p.yaml") and refused.value.line


def test_a_playbook_for_the_other_way_is_refused_before_any_host_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path, {"p.yaml": ROLLBACK}) / "p.yaml"
    with pytest.raises(InputError, match="playbook for a rollback") as refused:
        inputs.load_playbook(path, "rollout")
    assert refused.value.line == ROLLBACK[: ROLLBACK.index("action:")].count("\n") + 1


def test_a_flag_with_a_name_that_is_too_long() -> None:
    with pytest.raises(InputError, match="no such file"):
        inputs.load_hosts(Path("x" * 5000))
