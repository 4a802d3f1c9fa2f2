"""Smaller parts of the runner, each in one process: archive, journal, releases, the controller's absence."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import time
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_deploy.onhost.context import Context, UndoFailed
from ddtree_deploy.onhost.programs import detach
from ddtree_deploy.onhost.run import interruption
from ddtree_deploy.onhost.staging import archive
from ddtree_deploy.onhost.state import durable, layout, line, releases
from ddtree_deploy.onhost.state.journal import Journal, read
from ddtree_deploy.onhost.steps import install
from ddtree_deploy.onhost.wire.masking import escape
from ddtree_deploy.onhost.wire.protocol import Plan, StepSpec

from .host import sha, tar, until

pytestmark = pytest.mark.unit


def plan(**changed: Any) -> Plan:
    values: dict[str, Any] = {
        "protocol": 1, "run": "r1", "action": "rollout", "host": "h", "who": "w", "created": "c",
        "python": "p", "state_dir": "", "site": "/s", "package_dir": "", "payload_name": "p",
        "payload_version": "1", "variant": "v", "payload_digest": "", "release": "d1", "targets": [],
        "steps": [StepSpec("install", "install", 1.0)],
    }  # fmt: skip
    return Plan(**{**values, **changed})


# ---- archive --------------------------------------------------------------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        made.addfile(info, io.BytesIO(b""))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (member("/etc/passwd"), "leaves"),
        (member("../x"), "leaves"),
        (member("blobs/../../x"), "leaves"),
        (member("blobs//x"), "leaves"),
        (member("x", tarfile.SYMTYPE, "/etc/passwd"), "link or a device"),
        (member("x", tarfile.LNKTYPE, "y"), "link or a device"),
        (member("x", tarfile.CHRTYPE), "link or a device"),
        (member("x", tarfile.FIFOTYPE), "link or a device"),
        (b"no tar at all", "not a readable tar.gz"),
        (tar({"blobs/x": "x" * 100_000})[:-50], "not a readable tar.gz"),
    ],
    ids=[
        "absolute",
        "above",
        "dots",
        "empty part",
        "symlink",
        "hard link",
        "device",
        "fifo",
        "no tar",
        "cut",
    ],
)
def test_an_archive_is_not_trusted(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "a" / "payload.tar.gz"
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(archive.BadArchive, match=why):
        archive.unpack(path, tmp_path / "a" / "out", sha(data))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    assert [p for p in tmp_path.rglob("*") if p.is_symlink() or p.name == "passwd"] == []


def test_another_digest_is_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(tar({"blobs/x": "x"}))
    with pytest.raises(archive.BadArchive, match="digest"):
        archive.unpack(path, tmp_path / "out", sha("other"))
    assert not (tmp_path / "out").exists()


# ---- journal --------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cut=st.integers(0, 200))
def test_a_journal_cut_anywhere_goes_on_with_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    first = Journal(path)
    for number in range(3):
        first.write("progress", text=f"line {number}")
    first.close()
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    again = Journal(path)
    again.write("progress", text="after")
    again.close()
    events, whole = read(path)
    assert whole == path.stat().st_size
    assert [e["n"] for e in events] == list(range(1, data.count(b"\n") + 2))
    assert events[-1]["text"] == "after"


def test_a_disk_that_fills_up_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("progress", text="one")
    write = os.write
    calls = 0

    def filling(fd: int, data: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, "No space left on device")
        return write(fd, bytes(data)[:5])

    monkeypatch.setattr(os, "write", filling)
    with pytest.raises(OSError, match="No space"):
        journal.write("intent", sync=True, undo={})
    journal.tolerant = True
    journal.write("undo", sync=True)
    monkeypatch.undo()
    journal.write("end")
    assert [(e["n"], e["e"]) for e in read(journal.path)[0]] == [(1, "progress"), (2, "end")]


def test_secrets_with_quotes_are_masked_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.secrets = ['se"cr\\et']
    journal.write("progress", text='the key is se"cr\\et.')
    assert read(journal.path)[0][0]["text"] == "the key is ***."


def test_control_and_bidirectional_characters_are_escaped() -> None:
    assert escape("a\x1b[2Jb\u202ec\tdé") == "a\\x1b[2Jb\\u202ec\tdé"


# ---- releases -------------------------------------------------------------------------------------------


def add_run(site_dir: Path, name: str, *events: dict[str, Any], backup: bool = True) -> Path:
    run_dir = site_dir / "runs" / name
    run_dir.mkdir(parents=True)
    lines = [{"n": i + 1, "t": 0, **e} for i, e in enumerate(events)]
    (run_dir / layout.JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if backup:
        (run_dir / "backup").mkdir()
    return run_dir


ENDED = ({"e": "locked"}, {"e": "end", "exit": 0})


def test_five_backups_are_kept_and_those_that_are_needed(tmp_path: Path) -> None:
    """Run 01 is live, and 00 was the good one before it; 02 never ended; the others came and went."""
    for number in range(12):
        add_run(tmp_path, f"{number:02d}", *(ENDED if number != 2 else ({"e": "locked"},)))
    durable.write_json(tmp_path / "installed.json", {"release": "01"})
    rows = [
        {"run": "00", "previous": "", "verdict": "good"},
        {"run": "01", "previous": "00", "verdict": "good"},
    ]
    (tmp_path / "releases.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    line.prune(tmp_path, keep={"11"})
    kept = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert kept == ["00", "01", "02", "07", "08", "09", "10", "11"]


def test_a_run_that_is_being_sent_is_not_pruned(tmp_path: Path) -> None:
    for number in range(30):
        add_run(tmp_path, f"{number:02d}", *ENDED, backup=False)
    (tmp_path / "runs" / "000-arriving").mkdir()
    line.prune(tmp_path, keep={"29"})
    kept = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert kept == ["000-arriving", *(f"{n:02d}" for n in range(10, 30))]


def test_a_torn_line_of_releases_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "releases.jsonl").write_text('{"run": "r0"}\n{"run": "r')
    releases._append(plan(), tmp_path, "good", "r0")
    releases._append(plan(), tmp_path, "good", "r0")
    assert [line["run"] for line in releases.lines(tmp_path)] == ["r0", "r1"]


@pytest.mark.parametrize(
    ("verdict", "step", "expected"),
    [
        ("fail", "install", ["bad"]),
        ("interrupted", "install", ["rolled-back"]),
        ("died", "install", ["rolled-back"]),
        ("inconclusive", "install", ["rolled-back"]),
        ("fail", "preflight", []),
        ("fail", "lock", []),
    ],
)
def test_only_a_gate_makes_a_release_bad(
    tmp_path: Path, verdict: str, step: str, expected: list[str]
) -> None:
    steps = [StepSpec(k, k, 1.0) for k in ("lock", "preflight", "install")]
    releases.record_failure(plan(steps=steps), tmp_path, verdict, step)
    assert [line["verdict"] for line in releases.lines(tmp_path)] == expected


# ---- what an undo left -----------------------------------------------------------------------------------


def test_an_undone_install_leaves_no_folder_of_its_own_and_lacks_none(tmp_path: Path) -> None:
    site, run_dir = tmp_path / "site", tmp_path / "run"
    (site / "made").mkdir(parents=True)
    run_dir.mkdir()
    made = plan(site=str(site))
    ctx = Context(made, run_dir, Journal(run_dir / "journal.jsonl"), StepSpec("install", "install", 60.0))
    intents = [{"op": "mkdir", "path": str(site / "made")}, {"op": "rmdir", "path": str(site / "old")}]
    with pytest.raises(UndoFailed, match=r"site/made is left over; the folder .*site/old is missing"):
        install.check_undone(ctx, intents)
    (site / "made" / "theirs.txt").write_text("put here during the run")
    (site / "old").mkdir()
    install.check_undone(ctx, intents)


# ---- the controller's absence ---------------------------------------------------------------------------


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    made = plan(on_controller_loss="undo")
    return Context(made, tmp_path, Journal(tmp_path / "journal.jsonl"), StepSpec("s", "run", 60.0))


def test_a_silent_controller_interrupts_where_the_plan_says_so(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "HEARTBEAT_LOST_S", 0.5)
    with interruption.Interruption(ctx, ctx.run_dir):
        assert ctx.stop_event.wait(30)
    assert "controller is gone" in ctx.interrupted_by


def test_a_controller_that_is_heard_does_not(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of our own: at each look almost as much time has passed as may pass."""
    now = 0.0
    monkeypatch.setattr(interruption, "time", types.SimpleNamespace(monotonic=lambda: now))
    watcher = interruption.Interruption(ctx, ctx.run_dir)
    looked = 0
    stamps = iter(range(1, 1000))

    def stamp() -> int:
        nonlocal looked, now
        looked += 1
        now += interruption.HEARTBEAT_LOST_S - 1
        return next(stamps) if looked < 4 else 4

    monkeypatch.setattr(watcher, "_stamp", stamp)
    with watcher:
        until(lambda: looked >= 4)
        assert not ctx.stop_event.is_set()
        assert ctx.stop_event.wait(30)  # and then the same stamp again and again
    assert looked > 4


def test_a_signal_sets_the_event_without_taking_its_lock(ctx: Context) -> None:
    with interruption.Interruption(ctx, ctx.run_dir):
        with ctx.stop_event._cond:  # type: ignore[attr-defined]  # what a main thread inside wait() holds
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)
        assert ctx.stop_event.wait(30)
    assert ctx.interrupted_by == "interrupted by SIGTERM"


# ---- detaching ------------------------------------------------------------------------------------------


def test_the_transient_unit(tmp_path: Path) -> None:
    run_dir = tmp_path / "20261129T174501-ab12cd"
    argv = detach.systemd_command(run_dir)
    assert argv[:4] == ["systemd-run", "--unit=ddtree-deploy-20261129T174501-ab12cd", "--collect", "--quiet"]
    assert "--property=KillMode=process" in argv
    assert argv[argv.index("--") + 1 :] == detach.command(run_dir)
