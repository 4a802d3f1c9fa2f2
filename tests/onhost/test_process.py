"""Programs with a deadline, in one process."""

from __future__ import annotations

import os
import pwd
import sys
import threading
import time
from pathlib import Path

import pytest

from ddtree_deploy.onhost.context import Context, Interrupt, StepFailed
from ddtree_deploy.onhost.programs.process import kill_marked, run_process
from ddtree_deploy.onhost.state.journal import Journal, read
from ddtree_deploy.onhost.wire.protocol import Plan, StepSpec
from tests.root import need_root

MIB = 1024 * 1024


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    run = f"r{os.getpid()}"  # by which its processes are found, and killed, on the whole machine
    plan = Plan(1, run, "rollout", "h", "w", "c", "p", "", "/s", "", "p", "1", "v", "", "", [], [])
    made = Context(plan, tmp_path, Journal(tmp_path / "journal.jsonl"), StepSpec("s", "run", 60.0))
    made.deadline = time.monotonic() + 60.0
    return made


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_case_01_ten_mebibytes_on_both_streams_at_once(ctx: Context) -> None:
    code = (
        "import sys, threading\n"
        "def f(s):\n for i in range(10240): s.write('x' * 1023 + '\\n')\n"
        "t = threading.Thread(target=f, args=(sys.stderr,))\n"
        "t.start(); f(sys.stdout); t.join(); print('last')"
    )
    done = run_process(ctx, python(code))
    assert done.rc == 0
    assert (ctx.logs_dir / f"{ctx.step.name}.log").stat().st_size > 20 * MIB
    assert len(done.output) <= 64 * 1024
    assert done.stdout.splitlines()[-1] == "last"
    assert ctx.journal.path.stat().st_size < MIB  # the journal is no copy of the log


def test_progress_bars_and_control_characters_are_shown_as_text(ctx: Context) -> None:
    lines: list[str] = []
    run_process(ctx, ["/bin/sh", "-c", "printf '10%%\\r20%%\\r\\033[31mred\\n'"], on_line=lines.append)
    assert lines == ["10%", "20%", "\\x1b[31mred"]


def test_a_program_that_is_not_there(ctx: Context) -> None:
    with pytest.raises(StepFailed, match="cannot run /nonexistent: No such file"):
        run_process(ctx, ["/nonexistent"])


def test_an_interrupt_ends_the_program(ctx: Context) -> None:
    threading.Timer(0.1, ctx.stop_event.set).start()
    with pytest.raises(Interrupt):
        run_process(ctx, ["/bin/sleep", "600"])


def test_one_that_ignores_sigterm_is_killed(ctx: Context) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    with pytest.raises(StepFailed, match="took longer than 1 s; last line: up"):
        run_process(ctx, python(code), timeout=1.0)


def test_a_child_that_keeps_the_pipes_open_is_not_waited_for(ctx: Context) -> None:
    done = run_process(ctx, ["/bin/sh", "-c", "setsid sleep 30 & echo ended"])
    assert done.stdout == "ended\n"
    assert len(kill_marked(f"{ctx.plan.run}/")) == 1


def test_the_environment_is_minimal(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAK", "1")
    names = {line.partition("=")[0] for line in run_process(ctx, ["/usr/bin/env"]).stdout.splitlines()}
    assert names == {"HOME", "USER", "LOGNAME", "PATH", "LANG", "LC_ALL", "DDTREE_DEPLOY_RUN"}


def test_secrets_are_masked_everywhere(ctx: Context) -> None:
    ctx.journal.secrets = ["s3cr3t-value"]
    lines: list[str] = []
    run_process(ctx, ["/bin/echo", "--api-key", "other-secret", "s3cr3t-value"], on_line=lines.append)
    assert lines == ["--api-key other-secret ***"]
    shown = [e["argv"] for e in read(ctx.journal.path)[0] if e["e"] == "output"]
    assert shown == ["/bin/echo --api-key *** ***"]
    assert "s3cr3t" not in (ctx.logs_dir / f"{ctx.step.name}.log").read_text() + ctx.journal.path.read_text()


def test_as_root_it_runs_as_the_user_asked_for(ctx: Context) -> None:
    need_root("needs root")
    done = run_process(ctx, ["/usr/bin/id", "-un"], user="nobody")
    assert done.stdout.strip() == "nobody"
    home = run_process(ctx, ["/bin/sh", "-c", "echo $HOME"], user="nobody").stdout.strip()
    assert home == pwd.getpwnam("nobody").pw_dir


def test_a_full_disk_costs_the_log_but_not_the_verdict(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddtree_deploy.onhost.programs import process

    monkeypatch.setattr(process, "LOG_LIMIT", 10)
    done = run_process(ctx, ["/bin/sh", "-c", "seq 100"])
    assert done.rc == 0
    assert done.stdout.endswith("99\n100\n")
