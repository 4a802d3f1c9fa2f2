"""Which release serves: the server itself says so before `health` passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.context import Context, StepFailed
from ddtree_deploy.onhost.recovery import commit
from ddtree_deploy.onhost.service import release
from ddtree_deploy.onhost.service.base import RELEASE, Record
from ddtree_deploy.onhost.state import releases
from ddtree_deploy.onhost.venv import modules
from ddtree_deploy.onhost.wire.protocol import Launch, Serves, Target

from .host import sha
from .serving_support import Lab, do, lab_at, launch, of, until

SET = {"speculative-algorithm": "DDTREE", "speculative-ddtree-budget": "16", "mem-fraction-static": "0.90"}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        yield made


def started(lab: Lab, edits: Launch, **plan: Any) -> Context:
    """A rollout that has come as far as `start`."""
    ctx = lab.context(lab.service(launch=edits), "start", "health", "unlock", **plan)
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    return ctx


def looked(ctx: Context, *, recorded: bool = False) -> release.Look:
    wanted = releases.to_be(ctx.plan, ctx.run_dir)
    return release.look(of(ctx), ctx.state_dir, wanted, recorded=recorded)


# ---- flags --------------------------------------------------------------------------------------------


def test_case_30_the_server_confirms_each_flag_as_its_parser_typed_it(lab: Lab) -> None:
    edits = launch(lab, set={**SET, "enable-metrics": None, "tp": "1"}, unset=["speculative-num-steps"])
    ctx = started(lab, edits)
    said = do(ctx, "health")
    assert (
        f"the process carries release {ctx.plan.run}" in said and "the server confirms 4 of 5 flags" in said
    )
    assert "not told: tp (only the command line has it)" in said  # the stand-in names no field after it


def override(lab: Lab, *words: str) -> Context:
    """A launch whose last words win over those that we set."""
    edits = launch(lab, set=SET)
    ctx = lab.context(lab.service(launch=edits), "start", "health")
    of(ctx).apply_launch(ctx)
    saved = ctx.state_dir / "services" / "sglang" / "launch.json"
    data = json.loads(saved.read_text())
    saved.write_text(json.dumps({**data, "argv": [*data["argv"], *words]}))
    do(ctx, "start")
    return ctx


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--speculative-algorithm", "DFLASH"], "speculative-algorithm DFLASH, it is to be DDTREE"),
        (["--speculative-ddtree-bud", "8"], "speculative-ddtree-budget 8, it is to be 16"),
        (["--speculative-ddtree-budget=017"], "speculative-ddtree-budget 17, it is to be 16"),
        (["--mem-fraction-static", "0.5"], "mem-fraction-static 0.5, it is to be 0.90"),
    ],
    ids=["flag", "shortened", "equals", "fraction"],
)
def test_case_30_another_value_that_wins_fails_health(lab: Lab, words: list[str], says: str) -> None:
    with pytest.raises(StepFailed) as e:
        do(override(lab, *words), "health")
    assert e.value.verdict == "fail" and f"the server says {says}" in e.value.reason


@pytest.mark.parametrize("word", ["--speculative-num-draft-tokens", "--speculative-num-draft"])
def test_case_30_a_flag_that_is_to_be_unset_and_is_there_fails_health(lab: Lab, word: str) -> None:
    edits = launch(lab, word, "4", set={"speculative-algorithm": "DDTREE"})
    ctx = lab.context(lab.service(launch=edits), "start", "health")
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    wanted = releases.to_be(ctx.plan, ctx.run_dir) or {}
    wanted["launch"]["unset"] = ["speculative-num-draft-tokens"]
    seen = release.look(of(ctx), ctx.state_dir, wanted, recorded=False)
    assert seen.wrong == [f"its command line has {word}, and speculative-num-draft-tokens is to be unset"]


def test_case_30_what_the_server_does_not_tell_is_called_unknown_and_its_command_line_is_read(
    lab: Lab,
) -> None:
    lab.mood(no_server_info=True)
    ctx = started(lab, launch(lab, set=SET))
    said = do(ctx, "health")
    assert "confirms" not in said and "neither /server_info nor /get_server_info is served" in said
    assert all(f"{flag} (only the command line has it)" in said for flag in SET)


def test_case_30_on_a_server_that_tells_nothing_the_command_line_is_judged(lab: Lab) -> None:
    lab.mood(no_server_info=True)
    ctx = override(lab, "--speculative-ddtree-budget", "8")
    with pytest.raises(StepFailed, match="has another speculative-ddtree-budget, and the server does not"):
        do(ctx, "health")


def test_a_secret_among_the_flags_is_neither_asked_for_nor_shown(lab: Lab) -> None:
    edits = launch(lab, set={"api-key": "s3cret-of-the-launch"})
    ctx = lab.context(
        lab.service(launch=edits), "start", "health", secrets={"api_key": "s3cret-of-the-launch"}
    )
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    said = do(ctx, "health")
    assert "api-key (only the command line has it)" in said and "s3cret" not in said


# ---- the process --------------------------------------------------------------------------------------


def test_a_process_of_an_earlier_release_fails_health(lab: Lab) -> None:
    first = started(lab, launch(lab, set=SET))
    second = lab.context(lab.service(launch=launch(lab, set=SET)), "start", "health")
    assert f"carries release {first.plan.run}, it should carry {second.plan.run}" in looked(second).wrong[0]
    with pytest.raises(StepFailed, match="another release serves"):
        do(second, "health")


def test_a_process_that_carries_nothing_fails_and_one_that_cannot_be_read_is_unknown(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = started(lab, launch(lab, set=SET))
    texts = {"readable": "PATH=/bin\0HOME=/\0", "renamed": "ang::scheduler\0\0\0PATH=/bin\0", "hidden": ""}
    found = {}
    real = release.proc.text
    for name, environ in texts.items():
        with monkeypatch.context() as patch:
            patch.setattr(
                release.proc, "text", lambda pid, file, e=environ: e if file == "environ" else real(pid, file)
            )
            found[name] = looked(ctx)
    assert "carries no release, it should carry" in found["readable"].wrong[0]
    assert found["renamed"].wrong == found["hidden"].wrong == []
    assert "environment cannot be read" in found["renamed"].unknown[0] == found["hidden"].unknown[0]


def test_the_service_before_the_first_release_carries_none(lab: Lab) -> None:
    ctx = started(lab, launch(lab))
    assert looked(ctx).wrong == []
    wrong = release.look(of(ctx), ctx.state_dir, None, recorded=True).wrong
    assert len(wrong) == 1 and f"carries release {ctx.plan.run}, it should carry none" in wrong[0]


def test_of_a_release_of_an_older_version_the_process_is_unknown(lab: Lab) -> None:
    ctx = started(lab, launch(lab, set=SET))
    wanted = releases.to_be(ctx.plan, ctx.run_dir) or {}
    del wanted["carries"], wanted["serves"]
    seen = release.look(of(ctx), ctx.state_dir, wanted, recorded=False)
    assert seen.wrong == [] and "an older version of this tool" in seen.unknown[0]


# ---- the launch, later --------------------------------------------------------------------------------


def test_case_43_an_edited_launch_and_a_process_with_another_command_line_are_seen(lab: Lab) -> None:
    ctx = started(lab, launch(lab, set=SET))
    do(ctx, "health")
    do(ctx, "unlock")
    assert looked(ctx, recorded=True).wrong == []
    saved = ctx.state_dir / "services" / "sglang" / "launch.json"
    data = json.loads(saved.read_text())
    data["argv"][data["argv"].index("16")] = "8"
    saved.write_text(json.dumps(data))
    (edited,) = looked(ctx, recorded=True).wrong
    assert edited == f"the launch was edited: {saved} is not what it was"

    control = of(ctx)
    control.terminate()
    until(lambda: not control.active(), "it is gone")
    do(ctx, "start")  # `start` notes what it starts: put back what the release was started with
    kept = Record.load(ctx.run_dir / "serving")
    argv = [("16" if before == "--speculative-ddtree-budget" else word) for before, word in _pairs(kept.argv)]
    Record(kept.kind, True, True, {**(kept.definition or {}), "argv": argv}, argv).save(
        ctx.run_dir / "serving"
    )
    wrong = looked(ctx, recorded=True).wrong
    assert wrong[0] == f"the launch was edited: {saved} is not what it was"
    assert wrong[1].endswith("runs another command line: 16 is 8")
    assert wrong[2] == "the server says speculative-ddtree-budget 8, it is to be 16"


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(["", *words], words, strict=False))


def test_a_launch_without_a_record_is_unknown(lab: Lab) -> None:
    ctx = started(lab, launch(lab, set=SET))
    (ctx.run_dir / "serving" / "service.json").unlink()
    seen = looked(ctx, recorded=True)
    assert seen.wrong == [] and any("no record" in text for text in seen.unknown)


# ---- the code -----------------------------------------------------------------------------------------


def served_payload(lab: Lab, loaded: str, installed: str) -> Context:
    """A server that has loaded one text of a module, where another was installed."""
    site = lab.root / "venv"
    package = site / "tiny_ddtree"
    package.mkdir(parents=True)
    module = Path(__file__).parents[2] / "payload/sglang_ddtree/loaded.py"
    files = {
        "__init__.py": textwrap.dedent("""
            import sys
            from tiny_ddtree import loaded
            loaded.begin(sys._getframe().f_code)
            from tiny_ddtree import worker

            def tell():
                return {"ddtree_modules": loaded.modules(), "tiny_version": "1"}
            """),
        "loaded.py": module.read_text(),
        "worker.py": loaded,
    }
    for name, text in files.items():
        (package / name).write_text(text)
    made = launch(lab, set=SET, env={"PYTHONPATH": str(site)})
    texts = {**files, "worker.py": installed}
    targets = [
        Target(str(package / n), f"site:tiny_ddtree/{n}", "blob:b", sha(t), "") for n, t in texts.items()
    ]
    serves = Serves("modules", server_info="ddtree_modules")
    ctx = started(lab, made)  # the venv of these tests is not the one that its Python knows: see `imports`
    ctx.plan = replace(ctx.plan, targets=targets, serves=serves)
    (package / "worker.py").write_text(installed)
    return ctx


def test_case_31_the_server_says_that_it_has_loaded_what_was_installed(lab: Lab) -> None:
    ctx = served_payload(lab, "WIDTH = 16\n", "# wider\nWIDTH = 16\n")
    assert "the code of 3 modules is what was installed" in do(ctx, "health")


def test_case_31_other_code_than_was_installed_fails_health_whatever_file_lies_there(lab: Lab) -> None:
    ctx = served_payload(lab, "WIDTH = 16\n", "WIDTH = 32\n")
    with pytest.raises(StepFailed, match=r"other code is loaded than was installed: tiny_ddtree\.worker"):
        do(ctx, "health")


def test_case_31_a_server_that_has_not_loaded_the_payload_fails_health(lab: Lab) -> None:
    ctx = started(lab, launch(lab), serves=Serves("modules", server_info="ddtree_modules"))
    with pytest.raises(StepFailed, match="does not tell ddtree_modules of /server_info: the payload is not"):
        do(ctx, "health")


@pytest.mark.parametrize(("version", "wrong"), [("1", []), ("2", ["tiny_version of /server_info is 1"])])
def test_a_payload_may_state_its_version(lab: Lab, version: str, wrong: list[str]) -> None:
    ctx = served_payload(lab, "WIDTH = 16\n", "WIDTH = 16\n")
    wanted = releases.to_be(ctx.plan, ctx.run_dir) or {}
    wanted |= {"version": version, "serves": {"equals": "version", "server_info": "tiny_version"}}
    seen = release.look(of(ctx), ctx.state_dir, wanted, recorded=False)
    assert [text.split(",")[0] for text in seen.wrong] == wrong


@pytest.mark.parametrize("options", [[], ["-O"], ["-OO"]])
def test_the_digest_of_a_loaded_module_is_that_of_its_source_however_python_is_started(
    tmp_path: Path, options: list[str]
) -> None:
    """With and without bytecode on disk, and with sets of texts, whose order is another in each process."""
    package = tmp_path / "pkg"
    package.mkdir()
    source = Path(__file__).parents[2] / "payload/sglang_ddtree/loaded.py"
    texts = {
        "loaded.py": source.read_text(),
        "__init__.py": "import sys\nfrom pkg import loaded\nloaded.begin(sys._getframe().f_code)\n",
        "odd.py": (
            '"""Text."""\nX = (1.5, -0.0, 2j, b"x", None, ..., "\\udc80")\n\n\n'
            'def f(a, /, b=1, *c, d, **e):\n    assert a in {"p", "q", "r", "s"}\n'
            "    try:\n        return [lambda: (a, y) for y in b]\n    finally:\n        del b\n"
        ),
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    code = "import json, pkg.odd, pkg.loaded; print(json.dumps(pkg.loaded.modules()))"
    told = [
        json.loads(
            subprocess.run(
                [sys.executable, "-S", *options, "-c", code],
                check=True,
                capture_output=True,
                cwd=tmp_path,
                env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": str(seed)},
            ).stdout
        )
        for seed in (1, 2)
    ]
    assert told[0] == told[1] and set(told[0]) == {"pkg", "pkg.loaded", "pkg.odd"}
    files = {str(package / n): {"ref": f"site:pkg/{n}", "sha256": sha(text)} for n, text in texts.items()}
    assert modules.others(files, told[0]) == []
    (package / "odd.py").write_text(texts["odd.py"].replace("b=1", "b=2"))
    assert modules.others(files, told[0]) == ["pkg.odd (its file is another by now)"]
    files[str(package / "odd.py")]["sha256"] = sha((package / "odd.py").read_bytes())
    assert modules.others(files, told[0]) == ["pkg.odd"]
    assert modules.others({}, told[0]) == [f"{name} (not of the release)" for name in sorted(told[0])]


def test_the_variable_is_in_the_launch_of_a_rollout_and_of_nothing_else(lab: Lab) -> None:
    ctx = lab.context(lab.service(launch=launch(lab)), "start", action="sweep")
    of(ctx).apply_launch(ctx)
    saved = json.loads((ctx.state_dir / "services" / "sglang" / "launch.json").read_text())
    assert RELEASE not in saved["env"]


def test_a_launch_that_a_sweep_leaves_the_service_with_is_the_live_releases(lab: Lab) -> None:
    ctx = started(lab, launch(lab, set=SET))
    releases.commit(ctx.plan, ctx.run_dir, [])
    other = Launch(lab.command(), set={**SET, "speculative-ddtree-budget": "8"})
    swept = lab.context(lab.service(launch=other), "start", "unlock", action="sweep")
    control = of(swept)
    control.terminate()
    until(lambda: not control.active(), "it is gone")
    control.apply_launch(swept)
    control.start(swept)
    until(control.generates, "tokens")
    assert len(looked(swept, recorded=True).wrong) == 3
    release.relaunched(swept, control, other)
    commit.forward(swept)
    commit.forward(swept)
    assert looked(swept, recorded=True).wrong == []
    assert (releases.installed(ctx.state_dir) or {})["release"] == ctx.plan.run
