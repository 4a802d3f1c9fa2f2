"""Edits of command lines, masking, and systemd's syntax: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_deploy.onhost.service import command_line
from ddtree_deploy.onhost.service.systemd import expansion, unitfile
from ddtree_deploy.onhost.wire import masking
from ddtree_deploy.onhost.wire.protocol import Launch

pytestmark = pytest.mark.unit

SERVER = [
    "/v/bin/python3",
    "-m",
    "sglang.launch_server",
    "--model-path",
    "/m",
    "--tp",
    "8",
    "--trust-remote-code",
]


@pytest.mark.parametrize(
    ("argv", "edits", "expected"),
    [
        (["s", "--a", "1", "--b"], Launch(set={"a": "2"}), ["s", "--a", "2", "--b"]),
        (["s", "--a=1", "--b"], Launch(set={"a": "2"}), ["s", "--a=2", "--b"]),
        (["s", "--a"], Launch(set={"c": "x y"}), ["s", "--a", "--c", "x y"]),
        (["s"], Launch(set={"c": None}), ["s", "--c"]),
        (["s", "--c", "v", "--d"], Launch(set={"c": None}), ["s", "--c", "--d"]),
        (["s"], Launch(set={"c": ""}), ["s", "--c", ""]),
        (["s"], Launch(set={"c": "-x"}), ["s", "--c=-x"]),
        (["s"], Launch(set={"c": "größe ☃"}), ["s", "--c", "größe ☃"]),
        (["s", "--a", "1", "2", "--b"], Launch(unset=["a"]), ["s", "--b"]),
        (["s", "--a=1", "--b", "-1"], Launch(unset=["a"]), ["s", "--b", "-1"]),
        (["s", "--a", "-1", "--b"], Launch(unset=["a"]), ["s", "--b"]),
        (["s", "--a", "1", "--a", "2", "--b"], Launch(set={"a": "3"}), ["s", "--a", "3", "--b"]),
        (["s", "--ab", "1"], Launch(set={"a": "3"}), ["s", "--ab", "1", "--a", "3"]),
        (["s", "--ab", "1"], Launch(unset=["a"]), ["s", "--ab", "1"]),
        (["s", "--a"], Launch(unset=["nosuch"]), ["s", "--a"]),
        (["s", "--a"], Launch(command=["t", "--b"], set={"b": "1"}), ["t", "--b", "1"]),
    ],
)
def test_a_flag_is_replaced_where_it_stands_or_appended(
    argv: list[str], edits: Launch, expected: list[str]
) -> None:
    assert command_line.edit(argv, edits) == expected


@given(
    st.lists(st.sampled_from(["--a", "--b=1", "--a x", "--c -1", "--c x -1", "--b"])),
    st.dictionaries(st.sampled_from(["a", "b", "d"]), st.none() | st.text(max_size=5)),
)
def test_an_edit_made_twice_is_the_edit_made_once(argv: list[str], edits: dict[str, str | None]) -> None:
    once = command_line.edit(["s", *" ".join(argv).split()], Launch(set=edits))
    assert command_line.edit(once, Launch(set=edits)) == once
    for flag, value in edits.items():
        assert command_line.values_of(once, flag) == ([] if value is None else [value])


def test_secrets_are_masked_and_lookalikes_are_not() -> None:
    argv = [
        *SERVER,
        "--api-key",
        "s3cret-a",
        "--admin-api-key=s3cret-b",
        "--max-total-tokens",
        "4096",
        "--tokenizer-path",
        "/t",
    ]
    text = " ".join(masking.mask_argv(argv, ["/m"]))
    assert "s3cret" not in text
    assert "--max-total-tokens 4096" in text and "--tokenizer-path /t" in text
    assert masking.secret_values(argv, {"HF_TOKEN": "hf_x", "TOKENIZERS_PARALLELISM": "false"}) == {
        "s3cret-a",
        "s3cret-b",
        "hf_x",
    }


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["/bin/bash", "-c", "exec python -m sglang.launch_server"], "a shell (bash)"),
        (["/usr/bin/env", "A=1", "sh", "-c", "x"], "a shell (sh)"),
        (["/usr/bin/docker", "run", "sglang"], "a container (docker)"),
        (["numactl", "--membind=0", "bash", "x.sh"], "a shell (bash)"),
        ([], "empty"),
    ],
)
def test_a_wrapper_is_recognised(argv: list[str], reason: str) -> None:
    assert reason in command_line.wrapper(argv)


def test_a_shell_script_is_a_wrapper_and_a_console_script_is_not(tmp_path) -> None:  # type: ignore[no-untyped-def]
    script, console = tmp_path / "start.sh", tmp_path / "sglang"
    script.write_text("#!/usr/bin/env bash\npython -m sglang.launch_server\n")
    console.write_text("#!/v/bin/python3\nimport sglang\n")
    assert "shell script" in command_line.wrapper([str(script)])
    assert command_line.wrapper([str(console), "serve"]) == ""
    assert command_line.wrapper(["/usr/bin/env", "A=1", *SERVER]) == ""


UNIT = """
[Unit]
Description=x
[Service]
# ExecStart=/bin/false
Environment=A=1 "B=two words" 'C=100%%'
ExecStart=/v/bin/python3 -m sglang.launch_server \\
  --model-path "/models/a b" \\
  # a comment between
  --port ${PORT} --x $$HOME --fmt %%d --host %H
Restart=always
"""


def test_a_unit_is_read_as_systemd_reads_it() -> None:
    prefix, words = unitfile.exec_start([UNIT])
    assert prefix == ""
    plain = expansion.expand([unitfile.specified(w, {"H": "h1"}) for w in words], {"PORT": "30000"}, 252)
    assert plain == [
        "/v/bin/python3", "-m", "sglang.launch_server", "--model-path", "/models/a b",
        "--port", "30000", "--x", "$HOME", "--fmt", "%d", "--host", "h1",
    ]  # fmt: skip
    assert unitfile.environment([UNIT]) == ["A=1", "B=two words", "C=100%%"]


def test_a_drop_in_clears_and_sets() -> None:
    more = "[Service]\nExecStart=\nExecStart=-/v/bin/sglang serve\n"
    assert unitfile.exec_start([UNIT, more]) == ("-", ["/v/bin/sglang", "serve"])
    with pytest.raises(unitfile.UnitError, match="2 ExecStart= lines"):
        unitfile.exec_start([UNIT, "[Service]\nExecStart=/bin/true\n"])


def test_what_was_not_edited_keeps_its_variables() -> None:
    _, words = unitfile.exec_start([UNIT])
    held = [unitfile.specified(word, {"H": "h1"}) for word in words]  # as systemd holds them
    line = unitfile.exec_line(held[0], [*held, "--new", "5% of $$X"], [])
    text = unitfile.drop_in(line, {"E": "9%"}, "r1", "{}")
    read = unitfile.exec_start([UNIT, text])[1]
    assert [unitfile.specified(word, {}) for word in read] == [*held, "--new", "5% of $$X"]
    assert "${PORT}" in text
    assert unitfile.environment([UNIT, text])[-1] == "E=9%%"


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12),
        min_size=1,
    )
)
def test_every_word_survives_the_unit_file(words: list[str]) -> None:
    literals = ["/bin/x", *words]
    line = unitfile.exec_line("/bin/x", [w.replace("$", "$$") for w in literals], [])
    _, read = unitfile.exec_start([unitfile.drop_in(line, {}, "r", "{}")])
    assert expansion.expand([unitfile.specified(word, {}) for word in read], {}, 252) == literals


def test_an_unclosed_quote_is_an_error_not_a_guess() -> None:
    with pytest.raises(unitfile.UnitError, match="quote"):
        unitfile.split('/bin/x "abc')
