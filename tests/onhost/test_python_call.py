"""How a command line runs Python, as data."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddtree_deploy.onhost.service.python_call import PythonCall, Unknown, read

MODULE = ["-m", "sglang.launch_server", "--port", "1"]


def call(*argv: str, folder: str = "/srv", **env: str) -> PythonCall:
    return read(list(argv), env, folder)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], []),
        (["-u"], []),
        (["-u", "-X", "dev"], ["-X", "dev"]),
        (["-Xdev", "-Wignore"], ["-X", "dev", "-W", "ignore"]),
        (["-I"], ["-I"]),
        (["-sP"], ["-s", "-P"]),
        (["-uBES"], ["-B", "-E", "-S"]),
        (["-X", "pycache_prefix=/x y"], ["-X", "pycache_prefix=/x y"]),
        (["--check-hash-based-pycs", "never"], ["--check-hash-based-pycs", "never"]),
    ],
)
def test_the_options_that_decide_what_is_imported_are_kept(words: list[str], command: list[str]) -> None:
    seen = call("/v/bin/python3", *words, *MODULE)
    assert seen.command == ["/v/bin/python3", *command]
    assert (seen.mode, seen.target, seen.first) == ("module", "sglang.launch_server", "")


def test_a_module_may_follow_its_letters_in_one_word() -> None:
    assert call("/v/bin/python", "-Ium", "sglang.launch_server").command == ["/v/bin/python", "-I"]
    assert call("/v/bin/python", "-msglang.launch_server").target == "sglang.launch_server"
    assert call("/v/bin/python", "-c", "import x", "-I").mode == "code"


@pytest.mark.parametrize(
    ("prefix", "env", "folder"),
    [
        (["env", "PYTHONPATH=/x", "A=b=c"], {"KEPT": "1", "PYTHONPATH": "/x", "A": "b=c"}, "/srv"),
        (["/usr/bin/env", "-i", "PATH=/bin"], {"PATH": "/bin"}, "/srv"),
        (["env", "-u", "KEPT", "--", "B=1"], {"B": "1"}, "/srv"),
        (["env", "--unset=KEPT", "-C", "sub"], {}, "/srv/sub"),
        (["env", "--chdir=/other"], {"KEPT": "1"}, "/other"),
        (["numactl", "--cpunodebind=0", "--membind", "0"], {"KEPT": "1"}, "/srv"),
        (["taskset", "-c", "0-3", "nice", "-n", "5"], {"KEPT": "1"}, "/srv"),
        (["nohup", "env", "X=1", "setsid", "env", "X=2"], {"KEPT": "1", "X": "2"}, "/srv"),
    ],
)
def test_what_stands_before_python_changes_what_python_gets(
    prefix: list[str], env: dict[str, str], folder: str
) -> None:
    seen = call(*prefix, "/v/bin/python", *MODULE, KEPT="1")
    assert (seen.env, seen.folder, seen.command) == (env, folder, ["/v/bin/python"])


def program(folder: Path, name: str, text: str = "") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_bare_name_is_looked_up_where_exec_looks(tmp_path: Path) -> None:
    one, two = program(tmp_path / "one", "python3"), program(tmp_path / "two", "python3")
    env = {"PATH": f"{tmp_path}/one:{tmp_path}/two"}
    assert read(["python3", *MODULE], env, "/").command == [one]
    assert read(["env", f"PATH={tmp_path}/two", "python3", *MODULE], env, "/").command == [two]
    # A service manager has a path of its own for the first word, and only for that.
    assert read(["python3", *MODULE], env, "/", f"{tmp_path}/two").command == [two]
    with pytest.raises(Unknown, match="python3 is not found"):
        read(["python3", *MODULE], {"PATH": "/nowhere"}, "/")


def test_a_relative_program_is_of_the_working_folder() -> None:
    assert call("venv/bin/python", *MODULE).command == ["/srv/venv/bin/python"]


def test_the_folder_of_a_script_comes_first_links_resolved(tmp_path: Path) -> None:
    real = program(tmp_path / "real", "serve.py")
    link = tmp_path / "link.py"
    link.symlink_to(real)
    for word in (real, str(link)):
        seen = call("/v/bin/python", "-u", word, "--port", "1")
        assert (seen.mode, seen.target, seen.first) == ("script", word, str(tmp_path / "real"))
    assert call("/v/bin/python", "real/serve.py", folder=str(tmp_path)).first == str(tmp_path / "real")
    assert call("/v/bin/python", "--", "serve.py", folder=str(tmp_path / "real")).first == str(
        tmp_path / "real"
    )
    assert call("/v/bin/python", str(tmp_path)).first == str(tmp_path), "a folder with a __main__.py"


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("#!{python}", []),
        ("#!{python} -sP", ["-s", "-P"]),
        ("#!/usr/bin/env python3", []),
        ("#!/usr/bin/env -S python3 -I", ["-I"]),
        ("#!/usr/bin/env -S PYTHONPATH=/x python3", []),
    ],
)
def test_a_console_script_is_run_by_its_first_line(tmp_path: Path, line: str, command: list[str]) -> None:
    python = program(tmp_path / "bin", "python3")
    script = program(tmp_path / "bin", "sglang", line.format(python=python) + "\nimport x\n")
    seen = read([script, "serve"], {"PATH": str(tmp_path / "bin")}, "/")
    assert seen.command == [python, *command]
    assert (seen.mode, seen.target, seen.first) == ("script", script, str(tmp_path / "bin"))
    assert seen.env.get("PYTHONPATH", "") == ("/x" if "PYTHONPATH" in line else "")


def test_a_link_to_python_by_another_name_is_python(tmp_path: Path) -> None:
    link = tmp_path / "sglang-py"
    link.symlink_to(os.path.realpath(sys.executable))
    assert call(str(link), *MODULE).command == [str(link)]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "empty"),
        (["/bin/sh", "-c", "python -m sglang.launch_server"], r"a shell \(sh\)"),
        (["env", "bash", "start.sh"], r"a shell \(bash\)"),
        (["/nowhere/uv", "run", "python", *MODULE], "uv is no Python"),
        (["/nowhere/conda", "run", "-n", "x", "python", *MODULE], "conda is no Python"),
        (["/v/bin/python"], "without a module or a script"),
        (["/v/bin/python", "-"], "with -"),
        (["/v/bin/python", "-V"], "with -V"),
        (["env", "--argv0=x", "/v/bin/python", *MODULE], "env is called with"),
        (["{script}"], "is a script of /bin/sh"),
    ],
)
def test_what_cannot_be_read_is_unknown(tmp_path: Path, argv: list[str], why: str) -> None:
    script = program(tmp_path, "start", "#!/bin/sh\nexec /v/bin/python -m sglang.launch_server\n")
    with pytest.raises(Unknown, match=why):
        call(*(word.format(script=script) for word in argv))
