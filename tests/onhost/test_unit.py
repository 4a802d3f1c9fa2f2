"""A unit's files: what is read of them, and the boot guard's drop-in beside them. Without root or systemd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.service.base import ServiceError
from ddtree_deploy.onhost.service.systemd import expansion, unitfile

from .test_service_systemd import EDITS, Host, host

__all__ = ["host"]

GUARD = ["/venv/bin/python", "-I", "/state/r 1/runner.pyz", "guard", "50%", "$X"]


def guard_file(host: Host) -> Path:
    return host.control().guard


def add_pre(host: Host, *lines: str) -> None:
    """Give the unit ExecStartPre= lines of its own."""
    unit = host.root / "units" / "sglang.service"
    unit.write_text(unit.read_text() + "".join(f"ExecStartPre={line}\n" for line in lines))


def pre(host: Host) -> list[str]:
    """What a boot runs before the service."""
    folder = host.root / "units" / "sglang.service.d"
    drop_ins = sorted(folder.glob("*.conf")) if folder.is_dir() else []
    texts = [p.read_text() for p in (host.root / "units" / "sglang.service", *drop_ins)]
    return unitfile.effective(texts, "ExecStartPre")


# ---- looking ---------------------------------------------------------------------------------------------


def test_what_one_look_saw_is_forgotten_at_its_end(host: Host) -> None:
    host.state(ActiveState="active", SubState="running")
    control = host.control()
    with control.one_look():
        assert control.active()
        with control.one_look():
            host.state(ActiveState="failed")
            assert control.active(), "of one moment"
        assert control.active(), "the outer look goes on"
    assert not control.active()
    host.state(ActiveState="active")
    assert control.active(), "outside a look each question is asked anew"
    host.state(ActiveState="failed")
    assert not control.active()


def test_a_look_that_fails_is_over_too(host: Host) -> None:
    host.state(ActiveState="active")
    control = host.control()
    with pytest.raises(RuntimeError), control.one_look():
        assert control.active()
        raise RuntimeError
    host.state(ActiveState="failed")
    assert not control.active()


@pytest.mark.parametrize("what", ["DropInPaths", "FragmentPath"])
def test_half_a_unit_is_no_unit(host: Host, what: str) -> None:
    gone = str(host.root / "units" / "gone.conf")
    host.state(held={what: [gone] if what == "DropInPaths" else gone})
    control = host.control(**EDITS)
    facts = control.describe()
    assert f"{gone} cannot be read" in facts.problem and facts.new_command == []
    with pytest.raises(StepFailed, match="cannot be read"):
        control.apply_launch(host.lab.context(control.service))
    with pytest.raises(ServiceError, match=re.escape(f"{gone} cannot be read: No such file")):
        control.put_guard(GUARD, "r1")
    assert not host.drop_in.parent.exists(), "nothing was written"


def test_our_drop_in_counts_before_systemd_has_read_it(host: Host) -> None:
    before = host.control().describe()
    host.drop_in.parent.mkdir()
    host.drop_in.write_text("[Service]\nExecStart=\nExecStart=/bin/ours\n")
    host.state(held={"DropInPaths": []})
    unread = host.control().describe()
    assert unread.command == ["/bin/ours"] and unread.digest != before.digest
    host.state()
    read = host.control().describe()
    assert (read.command, read.digest) == (unread.command, unread.digest), "and is read once"


# ---- the boot guard --------------------------------------------------------------------------------------


def test_the_guard_is_asked_first_and_the_units_own_commands_after_it(host: Host) -> None:
    add_pre(host, "-/bin/first %i", "/bin/second")
    control = host.control()
    assert control.guarded_unit() == "sglang.service"
    control.put_guard(GUARD, "r1")
    first, *own = pre(host)
    assert own == ["-/bin/first %i", "/bin/second"]
    assert first.startswith("+"), "with full privileges"
    words = [unitfile.specified(word, {}) for word in unitfile.split(first[1:])]
    assert expansion.expand(words, {}, 252) == GUARD
    assert control.guard.stat().st_mode & 0o777 == 0o644
    assert control.guard.parent.stat().st_mode & 0o777 == 0o755
    assert host.calls() == [], "systemd at work reads it with the launch"
    assert [p.name for p in control.guard.parent.iterdir()] == [control.guard.name]


def test_a_guard_that_is_put_again_does_not_guard_itself(host: Host) -> None:
    add_pre(host, "/bin/own")
    control = host.control()
    control.put_guard(["/old"], "r1")
    control.put_guard(["/new"], "r2")
    assert pre(host) == ["+/new", "/bin/own"]
    assert "run r2" in control.guard.read_text() and "r1" not in control.guard.read_text()


def test_a_guard_on_its_way_is_no_change_that_somebody_else_made(host: Host) -> None:
    host.state(NeedDaemonReload="yes")
    control = host.control()
    assert "daemon-reload" in control.describe().problem
    control.put_guard(GUARD, "r1")
    assert control.describe().problem == ""


@pytest.mark.parametrize("keep", [False, True])
def test_the_guard_goes_with_its_folder_unless_that_was_there(host: Host, keep: bool) -> None:
    control = host.control()
    assert not control.guard_folder_is_bare()
    if keep:
        control.guard.parent.mkdir()
        assert control.guard_folder_is_bare()
    control.put_guard(GUARD, "r1")
    assert not control.guard_folder_is_bare()
    control.remove_guard(keep_folder=keep)
    assert pre(host) == [] and not control.guard.exists()
    assert control.guard.parent.exists() is keep
    assert host.calls() == ["daemon-reload"]
    control.remove_guard(keep_folder=keep)
    assert host.calls() == ["daemon-reload"], "there was nothing to remove or to read"
    host.state(NeedDaemonReload="yes")
    control.remove_guard(keep_folder=keep)
    assert host.calls() == ["daemon-reload"] * 2, "killed between the removal and the reload"


def test_drop_ins_of_others_stay_when_the_guard_goes(host: Host) -> None:
    theirs = guard_file(host).parent / "theirs.conf"
    theirs.parent.mkdir()
    theirs.write_text("[Service]\nExecStartPre=/bin/theirs\n")
    control = host.control()
    assert not control.guard_folder_is_bare()
    control.put_guard(GUARD, "r1")
    assert pre(host)[1:] == ["/bin/theirs"]
    control.remove_guard(keep_folder=False)
    assert pre(host) == ["/bin/theirs"]
    assert [p.name for p in theirs.parent.iterdir()] == ["theirs.conf"]


def test_a_reload_that_systemd_refuses_is_said(host: Host) -> None:
    control = host.control()
    control.put_guard(GUARD, "r1")
    host.state(fails=["daemon-reload"])
    with pytest.raises(StepFailed, match="daemon-reload: Job failed"):
        control.remove_guard(keep_folder=False)
