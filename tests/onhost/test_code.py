"""Our sources are unpacked and compiled once a version; each run refers to those that made it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_deploy.onhost.state import code, layout
from ddtree_deploy.onhost.wire.facts import unpack
from ddtree_deploy.onhost.wire.protocol import PROTOCOL, FactsRequest
from ddtree_deploy.running import zipapp


def run_at(state: Path, name: str = "run", site: str = "key") -> Path:
    folder = state / "sites" / site / "runs" / name
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    made = run_at(tmp_path)
    code.place(made, zipapp.archive())
    return made


def start(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", str(run_dir / layout.RUNNER), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def compiled(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*.pyc")}


def test_a_run_is_started_by_its_link_and_nothing_is_compiled_or_written_again(
    tmp_path: Path, run_dir: Path
) -> None:
    (folder,) = (tmp_path / code.CODE).iterdir()
    assert (run_dir / layout.RUNNER).resolve() == folder
    before = compiled(folder)
    assert len(before) > 100, "each module is compiled, whether it was imported or not"
    assert "usage: run" in start(run_dir, "odd").stderr
    assert compiled(folder) == before
    (folder / "onhost" / "main.py").write_text("raise SystemExit('a source newer than what was compiled')")
    assert "newer" in start(run_dir, "odd").stderr
    assert compiled(folder) == before, "a run never writes there"


def test_a_second_run_of_the_version_unpacks_nothing(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(code, "_unpack")
    code.place(run_at(tmp_path, "other", "another-site"), zipapp.archive())


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "died while unpacking"])
def test_what_is_not_whole_is_unpacked_anew(tmp_path: Path, run_dir: Path, damage: str) -> None:
    (folder,) = (tmp_path / code.CODE).iterdir()
    module = folder / "onhost" / "main.py"
    whole = module.read_bytes()
    if damage == "changed":
        module.write_bytes(whole + b"raise SystemExit(9)")
    elif damage == "cut":
        module.write_bytes(whole[:100])
    elif damage == "gone":
        shutil.rmtree(folder / "onhost" / "steps")
    else:
        folder.rename(folder.with_name(f".{folder.name}.tmp"))
        module.parent.joinpath("x").parent.mkdir(parents=True, exist_ok=True)
    code.place(run_at(tmp_path, "next"), zipapp.archive())
    assert module.read_bytes() == whole
    assert [p.name for p in (tmp_path / code.CODE).iterdir()] == [folder.name]
    assert "usage: run" in start(run_dir, "odd").stderr


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    made = run_at(tmp_path)
    monkeypatch.setattr(code, "sync", full)
    with pytest.raises(OSError, match="No space"):
        code.place(made, zipapp.archive())
    assert not (tmp_path / code.CODE).exists()
    assert not os.path.lexists(made / layout.RUNNER)


def test_versions_that_runs_refer_to_stay_and_of_the_others_the_newest(tmp_path: Path, run_dir: Path) -> None:
    folder = tmp_path / code.CODE
    used = (run_dir / layout.RUNNER).resolve()
    for number in range(2 * code.KEEP):
        old = folder / f"old-{number}"
        if number % 2:
            old.write_bytes(b"as versions before this one kept their code")
        else:
            old.mkdir()
        os.utime(old, (number, number))
    os.utime(used, (0, 0))
    last = run_at(tmp_path, "next")
    code.place(last, zipapp.archive() + b"\0")  # a zip may end in a comment: another version
    left = {p.name for p in folder.iterdir()}
    newest = {f"old-{n}" for n in range(code.KEEP, 2 * code.KEEP)}
    assert left == {used.name, (last / layout.RUNNER).resolve().name, *newest}


def test_facts_run_from_what_is_unpacked_and_answer_the_same(tmp_path: Path) -> None:
    request = FactsRequest(protocol=PROTOCOL, state_dir=str(tmp_path), refs=["site:x.py"])
    program = zipapp.facts_program(request)
    argv = [sys.executable, "-I", "-S", "-c", program.code]

    def ask() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            argv, input=program.request + program.sources, capture_output=True, check=False, timeout=120
        )

    from_memory = ask()
    assert not list(tmp_path.iterdir())
    code.place(run_at(tmp_path), zipapp.archive())
    unpacked = ask()
    said = [unpack(done.stdout.split(b"DDTREE-FACTS ")[-1].strip()) for done in (from_memory, unpacked)]
    assert (said[0].site, said[0].packages) == (said[1].site, said[1].packages)
    assert not from_memory.stderr and not unpacked.stderr
    (folder,) = (tmp_path / code.CODE).iterdir()
    gather = folder / "onhost" / "facts" / "gather.py"
    gather.write_text("def main(request): print('from the folder'); return 7")
    assert (ask().returncode, ask().stdout) == (7, b"\nDDTREE-BEGUN\nfrom the folder\n")
    folder.chmod(0o777)
    assert b"DDTREE-FACTS" in ask().stdout, "what others may write to is not run"
