"""Modules are compiled once a host; a cache that is torn, foreign or of other sources is not used."""

from __future__ import annotations

import json
import marshal
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_deploy.onhost.state import codecache
from ddtree_deploy.onhost.wire.protocol import PROTOCOL, SOURCES_MARK, FactsRequest
from ddtree_deploy.running import zipapp

FACTS = "def main(text, begun): print('from the cache'); return 7"


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A runner where it lies on a host."""
    file = tmp_path / "state" / "sites" / "key" / "runs" / "run" / "runner.pyz"
    file.parent.mkdir(parents=True)
    file.write_bytes(zipapp.runner())
    return file


def stored(runner: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store the cache as a launch does; its file."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", [str(runner), "launch"])
        patch.setattr(codecache, "_path", "")
        meta_path = list(sys.meta_path)
        codecache.use(zipapp.digest(zipapp.sources()))
        sys.meta_path[:] = meta_path
        codecache.store()
    (file,) = (runner.parents[4] / "code").iterdir()
    return file


def start(runner: Path, word: str = "odd") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", str(runner), word]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_second_start_compiles_no_more_than_the_way_to_the_cache(
    runner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "usage: launch" in start(runner).stderr
    file = stored(runner, monkeypatch)
    assert file.stat().st_mode & 0o777 == 0o600
    codes = codecache.load(str(file))
    assert {"onhost", "onhost.main", "onhost.run.runner", "onhost.steps.install"} <= set(codes)
    codes["onhost.main"] = (
        False,
        marshal.dumps(compile("def main(argv): print('from the cache'); return 7", "m", "exec")),
    )
    rewrite(file, codes)
    done = start(runner)
    assert (done.returncode, done.stdout) == (7, "from the cache\n")


def rewrite(file: Path, codes: codecache.Codes) -> None:
    import zlib

    data = marshal.dumps(codes)
    file.write_bytes(zlib.crc32(data).to_bytes(4, "big") + data)


@pytest.mark.parametrize("damage", ["torn", "empty", "flipped", "writable by others"])
def test_a_cache_that_cannot_be_trusted_is_not_used(
    runner: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    file = stored(runner, monkeypatch)
    raw = file.read_bytes()
    if damage == "torn":
        file.write_bytes(raw[: len(raw) // 2])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "flipped":
        file.write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    else:
        file.chmod(0o666)
    assert codecache.load(str(file)) == {}
    assert "usage: launch" in start(runner).stderr


def test_another_digest_has_another_file_and_old_ones_go(
    runner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(runner, monkeypatch)
    for number in range(2 * codecache.KEEP):
        (file.parent / f"old-{number}").write_bytes(b"")
    codecache._prune(str(file.parent))
    assert len(list(file.parent.iterdir())) == codecache.KEEP
    assert codecache.path_in("/s", "a") != codecache.path_in("/s", "b")


def test_facts_use_the_cache_and_answer_the_same(runner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = runner.parents[4]
    request = FactsRequest(protocol=PROTOCOL, state_dir=str(state), refs=["site:x.py"])
    program = zipapp.facts_program(request)
    argv = [sys.executable, "-I", "-S", "-c", program.code]
    whole = program.request + program.sources
    plain = subprocess.run(argv, input=whole, capture_output=True, check=False)
    assert SOURCES_MARK.encode() in plain.stdout.splitlines(), "it asks for what it needs"
    file = stored(runner, monkeypatch)
    cached = subprocess.run(argv, input=program.request, capture_output=True, check=False)
    keys = [json.loads(done.stdout.split(b"DDTREE-FACTS ")[-1]).keys() for done in (plain, cached)]
    assert keys[0] == keys[1] and not plain.stderr and not cached.stderr
    codes = codecache.load(str(file))
    codes["onhost.facts.gather"] = (False, marshal.dumps(compile(FACTS, "m", "exec")))
    rewrite(file, codes)
    done = subprocess.run(argv, input=program.request, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (7, b"from the cache\n")


def test_a_runner_outside_of_a_state_folder_has_no_cache(tmp_path: Path) -> None:
    assert codecache.state_dir_of("/tmp/runner.pyz") == ""
    assert codecache.state_dir_of("/v/sites/key/runs/run/runner.pyz") == "/v"
    file = tmp_path / "runner.pyz"
    file.write_bytes(zipapp.runner())
    assert "usage: launch" in start(file).stderr
