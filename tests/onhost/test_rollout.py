"""A rollout of files, from the wait after the facts to its end, by the real zipapp and real processes."""

from __future__ import annotations

from .host import PATCHED, UPSTREAM, Host


def test_a_rollout_installs_and_records_the_release(host: Host) -> None:
    session = host.rollout()
    assert session.end["exit"] == 0, session.end
    assert session.process.returncode == 0
    assert set(session.verdicts().values()) == {"pass"}
    assert host.ask("import sglang.srt.spec as s; print(s.algorithm())") == "tree"
    assert (host.package / "srt" / "spec.py").read_text() == PATCHED


def test_a_rollback_restores_every_bit(host: Host) -> None:
    before = host.digest()
    inode = (host.package / "srt" / "spec.py").stat().st_ino
    first = host.rollout()
    assert host.digest() != before
    session = host.launch(*host.rollback(first.run))
    assert session.wait() == 0, session.end
    assert host.digest() == before
    assert (host.package / "srt" / "spec.py").stat().st_ino == inode
    assert host.ask("import sglang.srt.spec as s; print(s.algorithm())") == "chain"
    assert (host.package / "srt" / "spec.py").read_text() == UPSTREAM
    assert not (host.site_dir / "installed.json").exists()
