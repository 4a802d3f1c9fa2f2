"""A real server says which of the payload's code it runs, in each of its processes."""

import hashlib
import json
import subprocess

import pytest
from serving import DDTREE
from sglang_venv import REPOSITORY, sglang_python

pytestmark = pytest.mark.sglang


def test_case_31_each_process_says_which_of_our_code_it_has_loaded(v2_only, start, payload):
    """Compared with the files by the very code that judges it on a host, under the venv's Python as there."""
    server = start("loaded", DDTREE)
    _, info = server.request("/server_info")
    http_server, scheduler = info["ddtree_modules"], info["internal_states"][0]["ddtree_modules"]
    worker = next(name for name in scheduler if name.endswith("worker"))
    assert worker not in http_server and "sglang_ddtree.plugin" in http_server
    files = {
        str(path): {
            "ref": f"site:{path.relative_to(payload).as_posix()}",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in payload.rglob("*.py")
    }
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from ddtree_deploy.onhost.venv import modules; "
        "files, *told = json.load(sys.stdin); print(json.dumps([modules.others(files, t) for t in told]))"
    )
    changed = {**scheduler, worker: http_server["sglang_ddtree.plugin"]}
    judged = subprocess.run(
        [sglang_python(), "-I", "-S", "-c", code, str(REPOSITORY)],
        input=json.dumps([files, http_server, scheduler, changed]),
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(judged.stdout) == [[], [], [worker]]
