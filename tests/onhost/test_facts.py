"""The facts exec: sources in memory, read-only, an answer also from a venv that is not in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import inventory
from ddtree_deploy.onhost.wire.facts import Facts, unpack
from ddtree_deploy.onhost.wire.protocol import FACTS_MARK, FactsRequest
from ddtree_deploy.running.remote import explain_exec
from ddtree_deploy.running.zipapp import facts_program

from .host import DEADLINE_S, UPSTREAM, Host, sha

CONTROLLER = inventory.Host("ct1", "10.0.0.1", "/v/bin/python", file=Path("hosts.yaml"), line=4)


def run(host: Host, *refs: str, **changed: Any) -> subprocess.CompletedProcess[bytes]:
    request = FactsRequest(1, str(host.state), list(refs), **changed)
    program = facts_program(request)
    argv = [host.python, "-I", "-S", "-c", program.code]
    return subprocess.run(
        argv, input=program.request + program.sources, capture_output=True, check=False, timeout=DEADLINE_S
    )


def ask(host: Host, *refs: str, **changed: Any) -> Facts:
    done = run(host, *refs, **changed)
    assert done.returncode == 0, done.stderr.decode()
    (line,) = [x for x in done.stdout.decode().splitlines() if x.startswith(FACTS_MARK)]
    return unpack(line[len(FACTS_MARK) :].encode())


def test_the_package_is_found_without_importing_it(host: Host) -> None:
    (host.package / "__init__.py").write_text("raise SystemExit('imported')\n")
    facts = ask(host, "sglang:srt/spec.py", "site:sglang_ddtree/x.py", "site:sglang")
    assert facts.packages["sglang"].folder == str(host.package)
    assert facts.site == str(host.site)
    assert facts.site_dir == str(host.site_dir)
    assert facts.python == host.python
    spec = facts.files["sglang:srt/spec.py"]
    assert (spec.kind, spec.sha256, spec.mode) == ("file", sha(UPSTREAM), 0o644)
    assert facts.files["site:sglang_ddtree/x.py"].kind == "absent"
    assert facts.files["site:sglang"].kind == "dir"


def test_asking_leaves_no_trace(host: Host) -> None:
    before = host.digest()
    ask(host, "sglang:srt/spec.py")
    assert host.digest() == before
    assert not host.state.exists()


def test_a_file_where_the_state_should_be_is_an_input_error(host: Host) -> None:
    host.state.write_text("a file")
    done = run(host)
    said = done.stderr.decode()
    assert done.returncode == 1 and f"state_dir: {host.state} on the host is not a folder" in said
    error = explain_exec(CONTROLLER, "facts", 1, b"", done.stderr)
    assert isinstance(error, InputError)
    assert error.render().startswith(f"hosts.yaml:4: hosts.ct1.state_dir: ct1: {host.state}")


def test_an_editable_install_is_found_where_it_is(host: Host, tmp_path: Path) -> None:
    source = tmp_path / "checkout" / "python"
    source.mkdir(parents=True)
    host.package.rename(source / "sglang")
    (host.site / "__editable__.sglang.pth").write_text(f"{source}\n")
    info = host.site / "sglang-0.5.23.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    (info / "direct_url.json").write_text(
        json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}})
    )
    facts = ask(host, "sglang:srt/spec.py")
    assert facts.packages["sglang"].folder == str(source / "sglang")
    assert facts.packages["sglang"].editable
    assert facts.packages["sglang"].version == "0.5.23"
    assert facts.files["sglang:srt/spec.py"].sha256 == sha(UPSTREAM)


def test_a_broken_pth_file_is_a_warning(host: Host) -> None:
    (host.site / "broken.pth").write_text("import nosuchmodule\n")
    facts = ask(host, "sglang:srt/spec.py")
    assert facts.packages["sglang"].folder == str(host.package)
    assert any("complains" in w for w in facts.warnings)


def test_a_pth_file_that_prints_does_not_spoil_the_answer(host: Host) -> None:
    (host.site / "loud.pth").write_text("import sys; sys.stdout.write('hello')\n")
    assert ask(host).packages["sglang"].folder == str(host.package)


def test_a_process_of_this_venv_is_named_and_the_allowed_ones_are_not(host: Host) -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [host.python, "-c", code, "--api-key", "hunter2hunter2"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = ask(host).processes
        assert found.pid == process.pid
        assert "hunter2" not in found.command
        assert ask(host, also_stop=["time.sleep(600)"]).processes == []
    finally:
        process.kill()
        process.communicate()


def test_after_a_rollout_the_facts_tell_what_is_live(host: Host) -> None:
    session = host.rollout()
    facts = ask(host, "sglang:srt/spec.py", contents=True)
    assert facts.installed is not None
    assert facts.installed["release"] == session.run
    assert set(facts.installed_files) == set(facts.installed["changed"])
    assert all(f.sha256 == facts.installed["files"][p]["sha256"] for p, f in facts.installed_files.items())
    assert [(r.run, r.verdict) for r in facts.releases] == [(session.run, "good")]
    assert facts.bases == [sha(UPSTREAM)]
    assert not facts.lock.held
    assert facts.orphan is None
    assert facts.files["sglang:srt/spec.py"].content_b64


def test_a_request_of_another_version_is_refused_in_one_line(host: Host) -> None:
    program = facts_program(FactsRequest(99, "", []))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program.code],
        input=program.request + program.sources,
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == ["facts: protocol 99, this is 1"]


def test_the_fingerprint_has_cuda_driver_and_all_distributions(tmp_path: Path) -> None:
    from ddtree_deploy.onhost.facts import host_facts, site_facts

    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("__version__ = '2.14.1'\ncuda: Optional[str] = '12.9'\nhip = None\n")
    assert site_facts.cuda_of(str(torch)) == "12.9"
    (torch / "version.py").write_text("cuda: Optional[str] = None\n")
    assert site_facts.cuda_of(str(torch)) == site_facts.cuda_of(str(tmp_path)) == ""
    for name in ("Ninja-1.13.dist-info", "flashinfer_python-0.6.1.dist-info", "torch", "x.egg-info"):
        (tmp_path / name).mkdir(exist_ok=True)
    assert site_facts.freeze(str(tmp_path)) == ["flashinfer-python==0.6.1", "ninja==1.13"]
    assert isinstance(host_facts.driver(), str)
