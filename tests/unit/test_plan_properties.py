"""Any history of rollouts and rollbacks: plans cover exactly the difference, and lead back."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_deploy.inputs import archive
from ddtree_deploy.inputs.payload import Item, Payload, Variant
from ddtree_deploy.inputs.playbook import Playbook, Step
from ddtree_deploy.planning.assemble import PlanResult, RunOptions
from ddtree_deploy.planning.known import Known
from ddtree_deploy.planning.plan import make_rollback, make_rollout
from tests.unit.planning import HOST, NOW, PATCH, PATCHED, UPSTREAM, World, sha

STEPS = tuple(
    Step(kind, kind, 60.0, {}) for kind in ("lock", "backup", "stage", "stop", "install", "start", "unlock")
)
ROLLOUT = Playbook(Path("r.yaml"), "rollout", "rollout", STEPS)
ROLLBACK = Playbook(Path("b.yaml"), "rollback", "rollback", STEPS)
OVERLAY = "sglang:srt/sched.py"

contents = st.dictionaries(
    st.sampled_from([f"site:pkg/{name}" for name in ("a.py", "b.py", "sub/c.py", "sub/d.py")]),
    st.sampled_from([b"one\n", b"two\n", b""]),
)
overlays = st.sampled_from(["none", "patch", "file"])


def make_payload(files: dict[str, bytes], overlay: str) -> Payload:
    items = [Item(ref, "file", data, sha(data)) for ref, data in files.items()]
    if overlay == "patch":
        items.append(Item(OVERLAY, "patch", PATCH, sha(PATCHED), sha(UPSTREAM), "x.patch"))
    if overlay == "file":
        items.append(Item(OVERLAY, "file", b"whole\n", sha(b"whole\n"), sha(UPSTREAM), "x.py"))
    variant = Variant("v", ("0.5.23",), tuple(sorted(items, key=lambda i: i.ref)))
    return Payload(Path("p"), "p", "1", (variant,), (), {})


def options(n: int) -> RunOptions:
    return RunOptions.at(NOW.replace(minute=n), f"{n:06x}", "ada")


@settings(max_examples=150)
@given(st.lists(st.tuples(contents, overlays), min_size=1, max_size=5))
def test_rollouts_reach_what_is_wanted_and_rollbacks_lead_back(
    history: list[tuple[dict[str, bytes], str]],
) -> None:
    world = World()
    world.files["site:theirs.py"] = b"never touched\n"
    states = []
    for n, (files, overlay) in enumerate(history):
        made = make_payload(files, overlay)
        result = make_rollout(Known(HOST, world.facts(HOST, made)), made, ROLLOUT, options(n))
        before = dict(world.files)
        wanted = dict(files)
        wanted[OVERLAY] = {"none": UPSTREAM, "patch": PATCHED, "file": b"whole\n"}[overlay]
        wanted["site:theirs.py"] = b"never touched\n"
        different = {ref for ref in before.keys() | wanted.keys() if before.get(ref) != wanted.get(ref)}
        assert {t.ref for t in result.plan.targets} == different
        assert len(result.plan.targets) == len(different)
        states.append((before, world.installed))
        world.apply(result.plan, made.archive_entries(made.variants[0]))
        assert world.files == wanted
        again = make_rollout(Known(HOST, world.facts(HOST, made)), made, ROLLOUT, options(30 + n))
        assert again.plan.targets == []
        assert again.plan.release == result.plan.release
    for n, (files, installed) in enumerate(reversed(states)):
        back = make_rollback(Known(HOST, world.facts(HOST, None)), ROLLBACK, options(40 + n))
        assert isinstance(back, PlanResult)
        assert back.plan.back_to == (installed or {}).get("release", "")
        world.apply(back.plan, {})
        assert world.files == files
        assert world.installed == installed
    assert archive.digest(archive.build({})) == back.plan.payload_digest


@settings(max_examples=100)
@given(st.lists(st.tuples(contents, overlays), min_size=1, max_size=5), st.data())
def test_any_earlier_release_is_one_rollback_away(
    history: list[tuple[dict[str, bytes], str]], data: st.DataObject
) -> None:
    world = World()
    states = []
    for n, (files, overlay) in enumerate(history):
        made = make_payload(files, overlay)
        states.append((dict(world.files), world.installed))
        result = make_rollout(Known(HOST, world.facts(HOST, made)), made, ROLLOUT, options(n))
        world.apply(result.plan, made.archive_entries(made.variants[0]))
    wanted, installed = data.draw(st.sampled_from(states))
    to = str(installed["release"]) if installed else "base"
    back = make_rollback(Known(HOST, world.facts(HOST, None)), ROLLBACK, options(40), to=to)
    assert isinstance(back, PlanResult)
    world.apply(back.plan, {})
    assert world.files == wanted
    assert world.installed == installed
