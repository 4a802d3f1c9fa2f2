"""Plans: what a rollout and a rollback would do, from facts alone."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.errors import DeployError, DriftError, InputError
from ddtree_deploy.inputs import archive, payload, playbook
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.onhost.wire.facts import Gpu, LockFacts, Package, Process, Release
from ddtree_deploy.onhost.wire.protocol import FactsRequest, Plan, from_dict, to_dict
from ddtree_deploy.planning.assemble import NothingToDo, PlanResult, RunOptions, facts_request
from ddtree_deploy.planning.changes import render
from ddtree_deploy.planning.known import Known
from ddtree_deploy.planning.plan import make_rollback, make_rollout
from tests.unit.planning import (
    HOST,
    NOW,
    OPTIONS,
    PATCHED,
    PAYLOAD,
    PAYLOAD_FILES,
    PLAYBOOK,
    PROMPTS,
    ROLLBACK,
    SERVICE,
    UPSTREAM,
    World,
    path_of,
    sha,
    write,
)

GOLDEN = Path(__file__).parent / "golden"
LATER = RunOptions.at(NOW.replace(hour=18), "00ff00", "bob@ci")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


class Kit:
    """A payload, two playbooks and a host, as data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write(folder / "payload", PAYLOAD_FILES)
        write(folder, {"r.yaml": PLAYBOOK, "b.yaml": ROLLBACK, "prompts.jsonl": PROMPTS})
        self.world = World()
        self.host = HOST

    @property
    def payload(self) -> Payload:
        return payload.load(self.folder / "payload")

    @property
    def rollout_book(self) -> Playbook:
        return playbook.load(self.folder / "r.yaml")

    @property
    def rollback_book(self) -> Playbook:
        return playbook.load(self.folder / "b.yaml")

    def rollout(self, options: RunOptions = OPTIONS, **facts: Any) -> PlanResult:
        made = self.payload
        found = self.world.facts(self.host, made, contents=True, **facts)
        return make_rollout(Known(self.host, found), made, self.rollout_book, options)

    def apply(self, result: PlanResult) -> None:
        with tarfile.open(fileobj=io.BytesIO(result.archive)) as tar:
            blobs = {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar}
        self.world.apply(result.plan, blobs)

    def rollback(
        self, options: RunOptions = LATER, of_run: str = "", to: str = "", **facts: Any
    ) -> PlanResult | NothingToDo:
        found = self.world.facts(self.host, None, **facts)
        return make_rollback(Known(self.host, found), self.rollback_book, options, of_run=of_run, to=to)

    def refused(self, act: Callable[[], object]) -> DeployError:
        with pytest.raises(DeployError) as caught:
            act()
        assert "\n" not in caught.value.render()
        return caught.value


def golden(name: str, text: str) -> None:
    """Compare with the golden file; `UPDATE_GOLDEN=1` writes it instead."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"differs from {path}; look at it, then UPDATE_GOLDEN=1"


def as_json(made: Plan) -> str:
    return json.dumps(to_dict(made), indent=1, sort_keys=True) + "\n"


# ---- goldens --------------------------------------------------------------------------------------------


def test_a_first_rollout(kit: Kit) -> None:
    result = kit.rollout()
    # The archive's bytes depend on the zlib at hand; its digest is checked below.
    golden("rollout_first.json", as_json(replace(result.plan, payload_digest="")))
    golden("rollout_first.txt", render(result.changes))
    assert result.plan.payload_digest == archive.digest(result.archive)
    assert from_dict(Plan, json.loads(as_json(result.plan))) == result.plan


def test_an_upgrade_changes_only_what_differs(kit: Kit) -> None:
    kit.apply(kit.rollout())
    write(
        kit.folder / "payload",
        {
            "payload.yaml": PAYLOAD.replace("0.1.0", "0.2.0"),
            "sglang_ddtree/plugin.py": b"def register():\n    return True\n",
            "sglang_ddtree/extra.py": b"X = 1\n",
        },
    )
    (kit.folder / "payload/sglang_ddtree/kernels/tree.py").unlink()
    result = kit.rollout(LATER)
    golden("rollout_upgrade.txt", render(result.changes, unchanged=True))
    golden("rollout_upgrade.json", as_json(replace(result.plan, payload_digest="", steps=[])))
    assert "site:sglang_ddtree/__init__.py" not in {t.ref for t in result.plan.targets}


def with_service(kit: Kit, **more: Any) -> dict[str, Any]:
    """Facts with a service that has more to tell."""
    found = kit.world.facts(kit.host, kit.payload).service
    assert found is not None
    return {"service": replace(found, **more)}


def test_case_25_what_goes_down_with_the_service_is_shown(kit: Kit) -> None:
    names = {"dependents": ["edge.service", "front.socket"]}
    line = "  with  edge.service, front.socket (stopped with the service, and started again)\n"
    assert line in render(kit.rollout(**with_service(kit, **names)).changes)
    kit.apply(kit.rollout())
    back = kit.rollback(**with_service(kit, **names))
    assert isinstance(back, PlanResult) and line in render(back.changes)


def test_case_25_what_a_start_stops_is_a_warning(kit: Kit) -> None:
    text = render(kit.rollout(**with_service(kit, conflicting=["standin.service"])).changes)
    assert "a start of the service stops what conflicts with it: standin.service" in text


@pytest.mark.parametrize(("takes", "said"), [(0.0, False), (120.0, False), (121.0, True), (-1.0, True)])
def test_case_33_a_stop_limit_shorter_than_the_units_own_is_a_warning(
    kit: Kit, takes: float, said: bool
) -> None:
    text = render(kit.rollout(**with_service(kit, stop_takes_s=takes)).changes)
    assert ("stop.limit is 120 s" in text) is said


def test_a_rollback_of_an_upgrade(kit: Kit) -> None:
    kit.apply(kit.rollout())
    before = dict(kit.world.files)
    write(
        kit.folder / "payload", {"sglang_ddtree/plugin.py": b"P = 2\n", "sglang_ddtree/extra.py": b"X = 1\n"}
    )
    (kit.folder / "payload/sglang_ddtree/kernels/tree.py").unlink()
    kit.apply(kit.rollout(LATER))
    result = kit.rollback(RunOptions.at(NOW.replace(hour=19), "0e0e0e", "eve"))
    assert isinstance(result, PlanResult)
    golden("rollback.txt", render(result.changes))
    golden("rollback.json", as_json(replace(result.plan, payload_digest="")))
    kit.apply(result)
    assert kit.world.files == before


def test_what_is_live_already_changes_nothing(kit: Kit) -> None:
    kit.apply(kit.rollout())
    command = kit.world.facts(HOST, None).service
    assert command is not None
    result = kit.rollout(LATER, service=replace(command, new_command=command.command))
    assert result.plan.targets == []
    assert result.changes.empty
    assert render(result.changes).endswith("nothing to change: this release is live\n")


def test_another_environment_is_a_change_though_the_command_is_the_same(kit: Kit) -> None:
    kit.apply(kit.rollout())
    found = kit.world.facts(HOST, None).service
    assert found is not None
    launch = replace(SERVICE.launch, env={"NCCL_DEBUG": "WARN"})
    kit.host = replace(HOST, service=replace(SERVICE, launch=launch))
    result = kit.rollout(LATER, service=replace(found, new_command=found.command))
    assert not result.changes.empty
    assert "new settings of `launch:` beside the command" in render(result.changes)


def test_files_only(kit: Kit) -> None:
    kit.host = replace(HOST, service=None)
    result = kit.rollout()
    golden("rollout_files_only.txt", render(result.changes, diffs=False))
    (smoke,) = [s for s in result.plan.steps if s.kind == "smoke"]
    assert [check["name"] for check in smoke.options["checks"]] == ["smoke"]  # no server: no command line


# ---- what is refused -------------------------------------------------------------------------------------


def test_no_variant_for_this_sglang(kit: Kit) -> None:
    kit.world.version = "0.5.99"
    error = kit.refused(kit.rollout)
    assert (error.exit_code, error.render()) == (
        6,
        "ct129: plan: no variant of sglang-ddtree 0.1.0 is for SGLang 0.5.99 (there are: v23: 0.5.23); "
        "nothing was touched; next: add a variant to payload.yaml, or install one of these SGLang versions "
        "on the host",
    )


def test_no_sglang(kit: Kit) -> None:
    error = kit.refused(lambda: kit.rollout(packages={}))
    assert error.render() == (
        "ct129: plan: SGLang is not installed in the venv of /venv/bin/python3; nothing was touched; "
        "next: correct `python:` of ct129 in hosts.yaml"
    )


def _hand_patched(world: World) -> None:
    world.files["sglang:srt/sched.py"] = b"# patched by hand\n"


def _foreign_module(world: World) -> None:
    world.files["site:sglang_ddtree/plugin.py"] = b"# theirs\n"


def _removed(world: World) -> None:
    world.files["site:sglang_ddtree/kernels/tree.py"] = b"K = 1\n"  # equal, but not put there by us
    del world.files["sglang:srt/sched.py"]


def _linked(world: World) -> None:
    world.links["site:sglang_ddtree/plugin.py"] = "/home/ada/plugin.py"


def _folder(world: World) -> None:
    world.files["site:sglang_ddtree/plugin.py/x"] = b""


def short(line: bytes) -> str:
    return sha(line + b"\n")[:12]


DRIFT: dict[str, tuple[Callable[[World], None], str]] = {
    "an upstream file edited by hand": (
        _hand_patched,
        "1 live file is neither upstream's nor ours: "
        f"sglang:srt/sched.py (expected upstream {sha(UPSTREAM)[:12]}, found {short(b'# patched by hand')})",
    ),
    "a module of that name is there": (
        _foreign_module,
        "1 live file is neither upstream's nor ours: "
        f"site:sglang_ddtree/plugin.py (expected nothing, found {short(b'# theirs')})",
    ),
    "two at once": (
        _removed,
        "2 live files are neither upstream's nor ours: "
        f"sglang:srt/sched.py (expected upstream {sha(UPSTREAM)[:12]}, found nothing); "
        f"site:sglang_ddtree/kernels/tree.py (expected nothing, found {short(b'K = 1')})",
    ),
    "a link": (
        _linked,
        "1 live file is neither upstream's nor ours: "
        "site:sglang_ddtree/plugin.py (expected nothing, found a symbolic link to /home/ada/plugin.py)",
    ),
}
NEXT = (
    "--accept-drift takes them into the backup and goes on; nothing was touched; "
    "next: ddtree-deploy drift ct129"
)


@pytest.mark.parametrize("name", DRIFT)
def test_drift_is_refused_naming_each_file(name: str, kit: Kit) -> None:
    change, says = DRIFT[name]
    change(kit.world)
    error = kit.refused(kit.rollout)
    assert (error.exit_code, error.render()) == (6, f"ct129: plan: {says}; {NEXT}")


def test_accepted_drift_is_replaced_and_said(kit: Kit) -> None:
    _foreign_module(kit.world)
    result = kit.rollout(replace(OPTIONS, accept_drift=True))
    (target,) = [t for t in result.plan.targets if t.ref == "site:sglang_ddtree/plugin.py"]
    assert target.before == sha(b"# theirs\n")
    assert result.plan.accept_drift
    text = render(result.changes)
    assert "foreign files that are replaced, and kept in the backup: 1" in text
    assert "(foreign, " in text
    assert "    -# theirs" in text
    before = dict(kit.world.files)
    kit.apply(result)
    back = kit.rollback()
    assert isinstance(back, PlanResult)
    kit.apply(back)
    assert kit.world.files == before


def test_accepted_drift_names_a_link_by_its_target(kit: Kit) -> None:
    _linked(kit.world)
    result = kit.rollout(replace(OPTIONS, accept_drift=True))
    (target,) = [t for t in result.plan.targets if t.ref == "site:sglang_ddtree/plugin.py"]
    assert target.before == sha(b"symlink:/home/ada/plugin.py")


def test_a_folder_in_the_way_is_not_accepted(kit: Kit) -> None:
    _folder(kit.world)
    error = kit.refused(lambda: kit.rollout(replace(OPTIONS, accept_drift=True)))
    assert isinstance(error, DriftError)
    assert error.message == (
        "1 path cannot be replaced: site:sglang_ddtree/plugin.py (expected nothing, found a folder)"
    )
    assert error.next_command.startswith("move what is there out of the way on the host")


def test_a_linked_folder_is_refused(kit: Kit) -> None:
    kit.world.links["site:sglang_ddtree"] = "/home/ada/sglang_ddtree"
    error = kit.refused(lambda: kit.rollout(replace(OPTIONS, accept_drift=True)))
    assert error.message == (
        "site:sglang_ddtree should be a folder, but is a symbolic link to /home/ada/sglang_ddtree"
    )


def test_a_patch_without_its_base_is_refused_even_if_drift_is_accepted(kit: Kit) -> None:
    _hand_patched(kit.world)
    error = kit.refused(lambda: kit.rollout(replace(OPTIONS, accept_drift=True)))
    assert (error.exit_code, error.message) == (
        6,
        "the upstream content of sglang:srt/sched.py is neither live nor kept on the host: "
        "it cannot be patched or restored",
    )


def test_a_patch_over_a_foreign_file_uses_the_kept_base(kit: Kit) -> None:
    _hand_patched(kit.world)
    kit.world.bases[sha(UPSTREAM)] = UPSTREAM
    kit.apply(kit.rollout(replace(OPTIONS, accept_drift=True)))
    assert kit.world.files["sglang:srt/sched.py"] == PATCHED


def test_our_own_file_edited_since_is_foreign(kit: Kit) -> None:
    kit.apply(kit.rollout())
    kit.world.files["site:sglang_ddtree/plugin.py"] = b"edited\n"
    error = kit.refused(lambda: kit.rollout(LATER))
    ours = sha(b"def register():\n    pass\n")[:12]
    assert f"site:sglang_ddtree/plugin.py (expected ours {ours}, found {short(b'edited')})" in error.message


def test_sglang_installed_again_over_our_overlay_is_base_not_drift(kit: Kit) -> None:
    kit.apply(kit.rollout())
    kit.world.files["sglang:srt/sched.py"] = UPSTREAM
    result = kit.rollout(LATER)
    assert [t.ref for t in result.plan.targets] == ["sglang:srt/sched.py"]
    assert isinstance(kit.refused(kit.rollback), DriftError)  # but the host has moved for a rollback


def test_the_first_variant_whose_bases_match_is_chosen(kit: Kit) -> None:
    second = PAYLOAD[PAYLOAD.index("  - name: v23") : PAYLOAD.index("checks:")]
    other = b"def schedule():\n    return 7\n"
    text = PAYLOAD.replace(
        "checks:", second.replace("v23", "v23-fork").replace(sha(UPSTREAM), sha(other)) + "checks:", 1
    )
    write(kit.folder / "payload", {"payload.yaml": text.encode()})
    assert kit.rollout().plan.variant == "v23"
    kit.world.files["sglang:srt/sched.py"] = other
    assert kit.rollout().plan.variant == "v23-fork"
    _hand_patched(kit.world)
    # neither: reported against the first
    assert f"expected upstream {sha(UPSTREAM)[:12]}" in kit.refused(kit.rollout).message


def test_a_service_that_can_not_be_driven_is_bad_input(kit: Kit) -> None:
    kit.host = replace(HOST, file=Path("hosts.yaml"), line=13)
    found = kit.world.facts(HOST, None).service
    assert found is not None
    error = kit.refused(
        lambda: kit.rollout(service=replace(found, problem="the service runs in docker container x"))
    )
    assert (error.exit_code, error.render()) == (
        2,
        "hosts.yaml:13: hosts.ct129.service: plan: the service runs in docker container x; "
        "nothing was touched",
    )


def test_case_31_a_service_that_imports_other_code_is_refused_and_the_way_back_is_not_barred(
    kit: Kit,
) -> None:
    found = kit.world.facts(HOST, None).service
    assert found is not None
    other = "the service imports other code than planned: site-packages is /old, planned for /new"
    service = replace(found, other_code=other, warnings=["who listens is unknown"])
    error = kit.refused(lambda: kit.rollout(service=service))
    assert (error.exit_code, error.message) == (6, other)
    assert "correct `python:` of ct129" in error.next_command
    kit.apply(kit.rollout())
    back = kit.rollback(service=service)
    assert isinstance(back, PlanResult)
    assert {other, "who listens is unknown"} <= set(back.changes.warnings)


def test_a_service_that_the_playbook_would_not_stop(kit: Kit) -> None:
    write(
        kit.folder,
        {
            "r.yaml": b"schema: 1\nname: x\naction: rollout\n"
            b"steps: [lock, preflight, backup, stage, install, unlock]\n"
        },
    )
    error = kit.refused(kit.rollout)
    assert isinstance(error, InputError)
    assert error.render() == (
        f"{kit.folder}/r.yaml: ct129: the host has a service, but the playbook neither stops nor starts it "
        "around `install`; nothing was touched; next: add the steps stop and start, or take `service:` out "
        "of hosts.yaml"
    )


def test_an_unknown_check(kit: Kit) -> None:
    write(kit.folder, {"r.yaml": PLAYBOOK.replace("- smoke", "- smoke: {checks: [smok]}").encode()})
    error = kit.refused(kit.rollout)
    assert error.render() == (
        f"{kit.folder}/r.yaml:11: smoke: the payload has no check 'smok'; did you mean 'smoke'?; "
        "nothing was touched"
    )


def test_the_wrong_playbook(kit: Kit) -> None:
    found = kit.world.facts(HOST, kit.payload)
    error = kit.refused(lambda: make_rollout(Known(HOST, found), kit.payload, kit.rollback_book, OPTIONS))
    assert error.render() == (
        f"{kit.folder}/b.yaml:3: action: this is a playbook for a rollback, a rollout was asked for; "
        "nothing was touched"
    )


# ---- rollback --------------------------------------------------------------------------------------------


def test_nothing_of_ours(kit: Kit) -> None:
    assert kit.rollback() == NothingToDo("ct129", "nothing of ours is installed", missed=True)


def _failed(run: str, verdict: str = "bad") -> Release:
    return Release(run, "t", "ada", "rollout", "sglang-ddtree", "0.2.0", "v23", "d", verdict, "")


def test_case_38_a_rollback_that_finds_nothing_to_undo_is_missed_and_says_why(kit: Kit) -> None:
    kit.world.releases.append(_failed("20261129T190000-bbbbbb"))
    found = kit.rollback()
    assert isinstance(found, NothingToDo) and found.missed
    assert found.reason == (
        "nothing of ours is installed (rollout 20261129T190000-bbbbbb ended bad and was undone by itself)"
    )
    assert kit.rollback(to="base") == NothingToDo(
        "ct129", "what was before the first rollout is live already"
    )


def test_case_38_after_a_failed_rollout_a_rollback_goes_behind_the_live_release(kit: Kit) -> None:
    first = kit.rollout()
    kit.apply(first)
    write(kit.folder / "payload", {"sglang_ddtree/plugin.py": b"P = 2\n"})
    second = kit.rollout(LATER)
    kit.apply(second)
    kit.world.releases.append(_failed("20261129T190000-bbbbbb", "rolled-back"))
    found = kit.rollback()
    assert isinstance(found, PlanResult)
    assert found.plan.back_to == first.plan.run and found.plan.undoes == second.plan.run
    assert found.changes.warnings == (
        "this goes behind the live release (rollout 20261129T190000-bbbbbb ended rolled-back and was undone "
        "by itself)",
    )


def test_case_38_without_a_target_only_the_last_rollout_from_here_is_undone(kit: Kit) -> None:
    first = kit.rollout()
    kit.apply(first)
    kit.world.releases.append(_failed("20261129T190000-bbbbbb", "rolled-back"))
    found = kit.rollback(of_run="20261129T190000-bbbbbb")
    assert found == NothingToDo(
        "ct129",
        "the last rollout from here is not live (rollout 20261129T190000-bbbbbb ended rolled-back and was "
        f"undone by itself); {first.plan.run} is",
        missed=True,
        next_command="ddtree-deploy rollback ct129",
    )
    assert isinstance(kit.rollback(of_run=first.plan.run), PlanResult)


def test_a_rollback_whose_backup_is_gone_is_refused_at_plan(kit: Kit) -> None:
    kit.apply(kit.rollout())
    kit.world.backups.clear()
    error = kit.refused(kit.rollback)
    assert error.exit_code == 2 and "the live release, is gone" in error.message


def test_only_a_good_release_that_backups_lead_back_to_is_a_target(kit: Kit) -> None:
    first = kit.rollout()
    kit.apply(first)
    kit.world.releases.append(_failed("20261129T190000-bbbbbb"))
    assert kit.rollback(to=first.plan.run) == NothingToDo("ct129", f"{first.plan.run} is live already")
    for to, why in {
        "20261129T190000-bbbbbb": "release 20261129T190000-bbbbbb is marked bad",
        "2027": "there is no release 2027",
        "20261129T": "20261129T is the beginning of 2 releases",
    }.items():
        error = kit.refused(lambda to=to: kit.rollback(to=to))  # type: ignore[misc]
        assert (error.exit_code, error.message) == (2, f"{why}; can be gone back to: base")
    assert error.next_command == "ddtree-deploy releases ct129"
    kit.world.backups.clear()
    error = kit.refused(lambda: kit.rollback(to="base"))
    assert "no kept backups lead back to base" in error.message and error.exit_code == 2


def test_a_host_that_has_moved_is_not_rolled_back(kit: Kit) -> None:
    kit.apply(kit.rollout())
    del kit.world.files["site:sglang_ddtree/plugin.py"]
    error = kit.refused(kit.rollback)
    assert error.exit_code == 6
    assert (
        "1 live file is neither upstream's nor ours: site:sglang_ddtree/plugin.py (expected ours "
        in error.message
    )
    assert isinstance(kit.rollback(replace(LATER, accept_drift=True)), PlanResult)


def test_drift_of_a_run_that_died_half_way_says_to_recover_it(kit: Kit) -> None:
    _foreign_module(kit.world)
    error = kit.refused(lambda: kit.rollout(orphan=LockFacts(False, "r0", "eve")))
    assert error.render() == (
        "ct129: plan: 1 live file is half-way: run r0 ended without a verdict; nothing was touched; "
        "next: ddtree-deploy recover ct129"
    )


def test_two_rollbacks_go_two_releases_back(kit: Kit) -> None:
    start = dict(kit.world.files)
    kit.apply(kit.rollout())
    write(kit.folder / "payload", {"sglang_ddtree/plugin.py": b"P = 2\n"})
    kit.apply(kit.rollout(LATER))
    back_to = []
    for hour in (19, 20):
        result = kit.rollback(RunOptions.at(NOW.replace(hour=hour), "0e0e0e", "eve"))
        assert isinstance(result, PlanResult)
        back_to.append((result.plan.undoes, result.plan.back_to))
        kit.apply(result)
    assert back_to == [(LATER.run, OPTIONS.run), (OPTIONS.run, "")]
    assert kit.world.files == start


# ---- the rest --------------------------------------------------------------------------------------------


def test_the_facts_request_names_files_of_all_variants_and_their_folders(kit: Kit) -> None:
    host = replace(HOST, state_dir="~/state", also_stop=("jupyter",))
    request = facts_request(host, kit.payload, contents=True)
    assert from_dict(FactsRequest, json.loads(json.dumps(to_dict(request)))) == request
    assert (request.state_dir, request.also_stop, request.contents) == ("~/state", ["jupyter"], True)
    assert request.service == SERVICE
    assert [r for r in request.refs if "dist-info" not in r] == [
        "sglang:srt",
        "sglang:srt/sched.py",
        "site:sglang_ddtree",
        "site:sglang_ddtree/__init__.py",
        "site:sglang_ddtree/kernels",
        "site:sglang_ddtree/kernels/tree.py",
        "site:sglang_ddtree/plugin.py",
    ]
    assert facts_request(host, None).refs == []


def test_warnings_are_shown(kit: Kit) -> None:
    kit.host = replace(HOST, gpus=8)
    digest = kit.rollout().plan.release
    result = kit.rollout(
        lock=LockFacts(True, "r1", "eve", 7, "2026-11-29T17:00:00Z", "start"),
        orphan=LockFacts(False, "r0", "eve"),
        processes=[Process(99, "jupyter\x1b[31m lab")],
        gpus=[Gpu("RTX PRO 6000", 97887, 97000)],
        attempts={digest: "bad"},
        warnings=["clock is off"],
    )
    assert render(result.changes).split("warnings\n")[1].splitlines() == [
        "  clock is off",
        "  locked by run r1 of eve since 2026-11-29T17:00:00Z",
        "  run r0 ended without a verdict; it is recovered first",
        "  8 GPUs expected, 1 found: preflight will fail",
        "  another process uses this venv: 99 jupyter\\x1b[31m lab",
        "  this very release was rolled out here before and failed its gates",
    ]


def test_an_overlay_keeps_the_mode_of_the_upstream_file(kit: Kit) -> None:
    found = kit.world.facts(HOST, kit.payload)
    ref = "sglang:srt/sched.py"
    found = replace(found, files={**found.files, ref: replace(found.files[ref], mode=0o755)})
    made = make_rollout(Known(HOST, found), kit.payload, kit.rollout_book, OPTIONS)
    modes = {t.ref: t.mode for t in made.plan.targets}
    assert modes.pop(ref) == 0o755
    assert set(modes.values()) == {0o644}


def test_the_release_digest_is_of_the_wanted_state_not_of_the_way_there(kit: Kit) -> None:
    first = kit.rollout()
    kit.apply(first)
    again = kit.rollout(LATER)
    assert again.plan.release == first.plan.release
    write(kit.folder / "payload", {"sglang_ddtree/plugin.py": b"P = 2\n"})
    assert kit.rollout(LATER).plan.release != first.plan.release


def test_secrets_are_in_the_plan_only(kit: Kit) -> None:
    result = kit.rollout(replace(OPTIONS, secrets={"api_key": "s3cret"}))
    assert result.plan.secrets == {"api_key": "s3cret"}
    assert "s3cret" not in render(result.changes) + repr(result.changes)


def test_an_editable_sglang_is_where_the_host_says(kit: Kit) -> None:
    found = kit.world.facts(
        HOST, kit.payload, packages={"sglang": Package("0.5.23", "/src/sglang", editable=True)}
    )
    made = make_rollout(Known(HOST, found), kit.payload, kit.rollout_book, OPTIONS)
    assert made.plan.package_dir == "/src/sglang"


def test_timeouts_of_stop_and_start_follow_the_service(kit: Kit) -> None:
    service = replace(SERVICE, start_limit_s=100.0, drain_s=10.0, stop_limit_s=20.0)
    kit.host = replace(HOST, service=service)
    steps = {s.kind: s.timeout_s for s in kit.rollout().plan.steps}
    assert (steps["stop"], steps["start"]) == (90.0, 160.0)


def test_paths_are_those_that_the_host_reported(kit: Kit) -> None:
    found = kit.world.facts(HOST, kit.payload, contents=True)
    elsewhere = {ref: replace(state, path=f"/real{state.path}") for ref, state in found.files.items()}
    targets = kit.rollout(files=elsewhere).plan.targets
    assert {t.ref for t in targets} >= {"sglang:srt/sched.py", "site:sglang_ddtree/plugin.py"}
    for target in targets:
        assert target.path == f"/real{path_of(target.ref)}"
