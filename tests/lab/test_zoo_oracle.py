"""The zoo's own eyes: a look that would miss what it is there for makes every host look well told."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tests.lab.zoo import cells
from tests.lab.zoo.draft import Draft
from tests.lab.zoo.look import World, same
from tests.lab.zoo.story import DROP_IN, PAYLOAD, _without

pytestmark = pytest.mark.unit
FILE = (0o100000, "0o644", 0, 0, "digest", ())


def world() -> World:
    process: dict[str, Any] = {
        "cmdline": ["python", "--port", "1"],
        "environ": {"A": "1"},
        "cwd": "/",
        "ids": [0],
    }
    server = {"process": process, "imported": {}, "open": False, "generates": True, "pid": 7, "args": {}}
    return World(
        {"etc/fstab": FILE},
        {"sglang.service": "active/running", "edge.service": "active/running"},
        {"sglang.service": "1", "edge.service": "2"},
        {"0100007F:30000"},
        {30000: server},
        {(1, 1): "tmux"},
    )


def differs(change: str, **more: Any) -> str:
    """What `same` says after a change of the host, made by a statement about `w`."""
    after = copy.deepcopy(world())
    exec(change, {"w": after})
    return "; ".join(same(world(), after, Draft("zoo"), **more))


def test_a_host_that_is_as_before_differs_in_nothing() -> None:
    assert differs("pass", untouched=True) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("w.files['etc/new'] = w.files['etc/fstab']", "new: etc/new"),
        ("del w.units['edge.service']", "edge.service is inactive"),
        ("w.units['edge.service'] = 'failed/failed'", "edge.service is failed"),
        ("w.runs['edge.service'] = '3'", "edge.service was restarted"),
        ("w.ports.clear()", "nobody listens"),
        ("w.servers.clear()", "no server answers on port 30000"),
        ("w.servers[30000]['open'] = True", "answers without a key"),
        ("w.servers[30000]['generates'] = False", "does not generate"),
        ("w.servers[30000]['process']['cmdline'].append('--x')", "its command is"),
        ("w.servers[30000]['process']['environ'].clear()", "its variable A is None"),
        ("w.servers[30000]['process']['cwd'] = '/srv'", "its cwd is /srv"),
        ("w.servers[30000]['imported']['sglang'] = {'says': 1}", "imported"),
        ("w.bystanders.clear()", "ended: process 1 (tmux)"),
        ("w.left.append('/tmp/x')", "left: /tmp/x"),
    ],
)
def test_each_thing_that_is_another_one_is_seen(change: str, said: str) -> None:
    assert said in differs(change)


def test_a_refusal_may_not_even_restart_the_service() -> None:
    assert differs("w.runs['sglang.service'] = '9'") == ""
    assert "restarted: sglang.service" in differs("w.runs['sglang.service'] = '9'", untouched=True)
    assert "another process" in differs("w.servers[30000]['pid'] = 8", untouched=True)


def test_only_the_releases_own_paths_may_change() -> None:
    ours = "opt/sglang/venv/lib/python3.11/site-packages/"
    assert PAYLOAD.search(f"/{ours}tiny_ddtree/module0.py") and PAYLOAD.search(
        f"/{ours}tiny-1.0.0.dist-info/RECORD"
    )
    assert PAYLOAD.search(f"/{ours}sglang/srt/speculative/dflash_info.py")
    assert not PAYLOAD.search(f"/{ours}sglang/srt/speculative/spec_info.py")
    assert DROP_IN.search("etc/systemd/system/llm@a.service.d/zzzz-ddtree-deploy.conf")
    assert not DROP_IN.search("etc/systemd/system/llm@a.service.d/zzzz-ddtree-deploy-guard.conf")


def test_a_command_without_our_flags_is_what_is_left_of_it() -> None:
    argv = ["python", "-m", "x", "--a", "1", "--speculative-algorithm", "DFLASH", "--b", "--a=2", "tail"]
    assert _without(argv, ["speculative-algorithm", "a"]) == ["python", "-m", "x", "--b", "tail"]


def test_a_seed_gives_the_same_hosts_again_and_there_are_enough_of_them() -> None:
    first, again = (cells.all_of(5, 100) for _ in range(2))
    assert [d.name for d in first] == [d.name for d in again]
    assert [d.text() for d in first] == [d.text() for d in again]
    assert len({d.name for d in first}) == len(first) >= 150
    assert [d.name for d in cells.all_of(6, 100)] != [d.name for d in first]
    assert all(re.compile(reason) for d in first for reason in d.refused)
