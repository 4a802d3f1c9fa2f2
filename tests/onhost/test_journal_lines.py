"""The last lines of a unit, from stand-ins for an old journalctl and a new one. Real: tests/lab/cases."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddtree_deploy.onhost.service.systemd import journal

# Before 254 `--since` makes `-n N` the first N lines, unless they are asked for in reverse.
JOURNALCTL = """#!{python} -S
import sys
args, old = sys.argv[1:], {old}
with open({calls!r}, "a") as f:
    f.write("\\n".join(args) + "\\n")
lines = open({lines!r}).read().splitlines()
count = int(args[args.index("-n") + 1])
since = any(a.startswith("--since") for a in args)
if "-r" in args:
    shown = lines[::-1][:count]
else:
    shown = lines[:count] if old and since else lines[-count:]
if "export" in args:
    shown = [f"__CURSOR={{line}}" for line in shown]
print("\\n".join(shown))
"""
SHOWN = {"Id": "sglang.service", "InvocationID": "abc", "LogNamespace": ""}


@pytest.fixture(params=[True, False], ids=["before-254", "newer"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake = tmp_path / "journalctl"
    paths = {"calls": str(tmp_path / "calls"), "lines": str(tmp_path / "lines")}
    fake.write_text(JOURNALCTL.format(python=sys.executable, old=request.param, **paths))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def say(host: Path, *lines: str) -> None:
    (host / "lines").write_text("".join(f"{line}\n" for line in lines))


def asked(host: Path) -> list[str]:
    return (host / "calls").read_text().splitlines()


def test_case_27_the_last_lines_come_oldest_first(host: Path) -> None:
    say(host, *map(str, range(100)))
    assert journal.tail(SHOWN, 3, 1700000000.25) == ["97", "98", "99"]
    assert "--since=@1700000000.250" in asked(host)


def test_case_27_each_new_line_moves_the_mark(host: Path) -> None:
    marks = []
    for count in range(1, 5):
        say(host, *map(str, range(count)))
        marks.append(journal.mark(SHOWN, 1700000000.0))
    assert len(set(marks)) == 4, marks


def test_case_27_a_unit_is_asked_for_by_its_own_name_and_by_its_run_where_we_did_not_start_it(
    host: Path,
) -> None:
    say(host, "a")
    journal.tail(SHOWN, 3, 1.0)
    assert asked(host)[-3:] == ["-u", "sglang.service", "--since=@1.000"]
    journal.tail(SHOWN, 3, 0.0)
    assert asked(host)[-3:] == ["_SYSTEMD_INVOCATION_ID=abc", "+", "INVOCATION_ID=abc"]
    journal.tail({**SHOWN, "InvocationID": ""}, 3, 0.0)
    assert asked(host)[-2:] == ["-u", "sglang.service"]
    assert not any(word.startswith("--namespace") for word in asked(host))
    journal.tail({**SHOWN, "LogNamespace": "llm"}, 3, 0.0)
    assert "--namespace=+llm" in asked(host)


def test_without_journalctl_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert journal.tail(SHOWN, 3, 1.0) == [] and journal.mark(SHOWN, 1.0) == ""
