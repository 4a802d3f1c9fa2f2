"""Plans where releases meet: which variant, what a second rollback leads to, what a held one forbids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_deploy.errors import DeployError, DriftError, InputError
from ddtree_deploy.inputs.payload import Item, Payload, Variant
from ddtree_deploy.planning.known import Known
from ddtree_deploy.planning.plan import PlanResult, RunOptions, make_rollout
from ddtree_deploy.planning.variants import choose
from tests.unit.planning import HOST, NOW, OPTIONS, PAYLOAD, UPSTREAM, World, sha, write
from tests.unit.test_plan import LATER, Kit
from tests.unit.test_plan_properties import ROLLOUT

A, B = "sglang:srt/a.py", "sglang:srt/b.py"
OTHER = b"def schedule():\n    return 7\n"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def overlays(name: str, *bases: bytes) -> Variant:
    """A variant that replaces A, B, ...: made against these bases."""
    items = [
        Item(ref, "file", b"ours", sha(b"ours"), sha(base), f"{name}.{ref[-4]}")
        for ref, base in zip((A, B), bases, strict=False)
    ]
    return Variant(name, ("0.5.23",), tuple(items))


def payload(*variants: Variant) -> Payload:
    return Payload(Path("p"), "p", "1", variants, (), {})


# ---- variants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "chosen"),
    [
        ((UPSTREAM, UPSTREAM), "both"),
        ((UPSTREAM, OTHER), "second differs"),
        ((OTHER, UPSTREAM), "first differs"),
        ((OTHER, OTHER), "both"),  # none fits: drift is reported against the first
    ],
)
def test_every_overlay_of_a_variant_must_fit(live: tuple[bytes, bytes], chosen: str) -> None:
    made = payload(
        overlays("both", UPSTREAM, UPSTREAM),
        overlays("first differs", OTHER, UPSTREAM),
        overlays("second differs", UPSTREAM, OTHER),
    )
    world = World()
    world.files = dict(zip((A, B), live, strict=True))
    assert choose(Known(HOST, world.facts(HOST, made)), made).name == chosen


def test_where_ours_is_live_the_base_that_was_recorded_decides() -> None:
    """The file is the same whichever variant put it there."""
    world = World()
    world.files = {A: UPSTREAM}
    first = payload(overlays("old", UPSTREAM))
    result = make_rollout(Known(HOST, world.facts(HOST, first)), first, ROLLOUT, OPTIONS)
    world.apply(result.plan, first.archive_entries(first.variants[0]))
    assert world.files == {A: b"ours"}
    both = payload(overlays("fork", OTHER), overlays("upstream", UPSTREAM))
    assert choose(Known(HOST, world.facts(HOST, both)), both).name == "upstream"


# ---- what a rollout leaves behind ------------------------------------------------------------------------


def without_overlay(kit: Kit) -> None:
    """The next release of the payload patches nothing."""
    begin, end = PAYLOAD.index("    overlays:"), PAYLOAD.index("    dist_info:")
    write(kit.folder / "payload", {"payload.yaml": (PAYLOAD[:begin] + PAYLOAD[end:]).encode()})


def test_an_overlay_that_is_dropped_is_restored_from_its_base(kit: Kit) -> None:
    kit.apply(kit.rollout())
    without_overlay(kit)
    kit.apply(kit.rollout(LATER))
    assert kit.world.files["sglang:srt/sched.py"] == UPSTREAM


def test_an_overlay_that_is_dropped_without_a_kept_base_is_refused(kit: Kit) -> None:
    kit.apply(kit.rollout())
    kit.world.bases.clear()
    without_overlay(kit)
    error = kit.refused(lambda: kit.rollout(LATER))
    assert isinstance(error, DriftError)
    assert error.message == (
        "the upstream content of sglang:srt/sched.py is neither live nor kept on the host: "
        "it cannot be patched or restored"
    )


# ---- rollbacks -------------------------------------------------------------------------------------------


def test_two_rollbacks_name_the_release_before_and_then_the_time_before_the_first(kit: Kit) -> None:
    kit.apply(kit.rollout())
    write(kit.folder / "payload", {"sglang_ddtree/plugin.py": b"P = 2\n"})
    kit.apply(kit.rollout(LATER))
    named = []
    for hour in (19, 20):
        result = kit.rollback(RunOptions.at(NOW.replace(hour=hour), "0e0e0e", "eve"))
        assert isinstance(result, PlanResult)
        named.append((result.changes.back_to, result.plan.payload_name, result.plan.variant))
        kit.apply(result)
    assert named == [
        (f"{OPTIONS.run} (sglang-ddtree 0.1.0)", "sglang-ddtree", "v23"),
        ("before the first rollout", "", ""),
    ]


# ---- held releases ---------------------------------------------------------------------------------------


def hold(world: World) -> None:
    world.releases[-1] = replace(world.releases[-1], verdict="held")


def test_a_held_release_refuses_the_next_rollout_until_a_person_decides(kit: Kit) -> None:
    kit.apply(kit.rollout())
    hold(kit.world)
    error: DeployError = kit.refused(lambda: kit.rollout(LATER))
    assert isinstance(error, InputError)
    assert error.message.startswith(f"release {OPTIONS.run} of ada@laptop is held since ")
    assert error.next_command == "ddtree-deploy confirm ct129, or ddtree-deploy rollback ct129"
    assert isinstance(kit.rollback(), PlanResult), "a way to decide"
    kit.world.releases[-1] = replace(kit.world.releases[-1], verdict="good")
    assert kit.rollout(LATER).plan.run == LATER.run


def test_a_held_release_that_was_rolled_back_is_decided(kit: Kit) -> None:
    kit.apply(kit.rollout())
    hold(kit.world)
    back = kit.rollback()
    assert isinstance(back, PlanResult)
    kit.apply(back)
    assert kit.rollout(RunOptions.at(NOW.replace(hour=19), "0e0e0e", "eve")).plan.targets


# ---- the launch ------------------------------------------------------------------------------------------


def test_the_launch_has_changed_only_against_that_of_a_live_release(kit: Kit) -> None:
    assert not kit.rollout().changes.launch_changed, "nothing of ours is live"
    kit.apply(kit.rollout())
    assert not kit.rollout(LATER).changes.launch_changed
    assert kit.world.installed is not None
    kit.world.installed["launch"] = None
    assert kit.rollout(LATER).changes.launch_changed
    kit.host = replace(HOST, service=None)
    assert not kit.rollout(LATER).changes.launch_changed, "nothing is launched"
