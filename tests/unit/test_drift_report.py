"""`drift` and `releases`: what is live, with what differs; what was rolled out. All as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.planning.drift_report import LiveFile, lines_of, report, service_lines
from ddtree_deploy.planning.known import Known
from ddtree_deploy.running import releases_report
from tests.unit.planning import HOST, UPSTREAM
from tests.unit.test_plan import LATER, Kit

OVERLAID, NEW = "sglang:srt/sched.py", "site:sglang_ddtree/plugin.py"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def drift(kit: Kit) -> dict[str, LiveFile]:
    facts = kit.world.facts(HOST, kit.payload, contents=True)
    return {f.ref: f for f in report(Known(HOST, facts), kit.payload)}


def test_before_a_rollout_everything_is_base(kit: Kit) -> None:
    assert {f.state for f in drift(kit).values()} == {"base"}


def test_ours_is_shown_beside_upstreams(kit: Kit) -> None:
    made = kit.rollout()
    kit.apply(made)
    found = drift(kit)
    assert {(f.state, f.release) for f in found.values()} == {("ours", made.plan.run)}
    assert "-    return 1\n+    return 2\n" in found[OVERLAID].diff
    text = "\n".join(lines_of("ct129", list(found.values())))
    assert f"release {made.plan.run}; 2 lines differ from upstream" in text


@pytest.mark.parametrize("rolled_out", [True, False])
def test_a_foreign_file_is_shown_beside_what_is_expected(kit: Kit, rolled_out: bool) -> None:
    if rolled_out:
        kit.apply(kit.rollout())
    before = kit.world.files[OVERLAID]
    kit.world.files[OVERLAID] = before + b"# by hand\n"
    found = drift(kit)[OVERLAID]
    assert found.state == "foreign" and found.expected.startswith("ours" if rolled_out else "upstream")
    if rolled_out:
        assert found.diff.endswith("+# by hand\n")
        assert f"--- expected {OVERLAID}\n+++ live {OVERLAID}" in found.diff
    else:  # upstream's own bytes were never seen: said, not guessed
        assert found.diff == "" and "not at hand" in found.no_diff
    assert "foreign" in "\n".join(lines_of("ct129", [found]))


def test_a_file_of_ours_that_is_gone_has_moved(kit: Kit) -> None:
    kit.apply(kit.rollout())
    del kit.world.files[NEW]
    found = drift(kit)[NEW]
    assert (found.state, found.found, found.moved) == ("base", "nothing", True)
    assert "no diff: the live content is not at hand" in "\n".join(lines_of("ct129", [found]))


def test_control_characters_of_a_host_are_escaped(kit: Kit) -> None:
    kit.apply(kit.rollout())
    kit.world.files[OVERLAID] = UPSTREAM + b"\x1b[31m\n"
    assert "\x1b" not in "".join(lines_of("ct129", list(drift(kit).values())))


def test_releases_say_what_is_live_and_where_one_can_go_back_to(kit: Kit) -> None:
    first = kit.rollout()
    kit.apply(first)
    (kit.folder / "payload/sglang_ddtree/plugin.py").write_bytes(b"P = 2\n")
    second = kit.rollout(LATER)
    kit.apply(second)
    facts = kit.world.facts(HOST, None)
    rows = releases_report.rows(Known(HOST, facts))
    assert [(r.run, r.live, r.target) for r in rows] == [
        (second.plan.run, True, False),
        (first.plan.run, False, True),
    ]
    text = "\n".join(releases_report.lines_of("ct129", rows, [first.plan.run, "base"]))
    assert f"  * {second.plan.run}" in text and f"  < {first.plan.run}" in text and "  < base" in text


def test_case_43_a_service_that_does_not_show_the_release_is_a_line_each() -> None:
    lines = service_lines([], ["the launch was edited: /x is not what it was"], ["a flag\x1b[2J"])
    assert lines == ["  differs  the launch was edited: /x is not what it was", "  not told a flag\\x1b[2J"]
