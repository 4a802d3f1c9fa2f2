"""Which code a service imports, asked of real interpreters. On real systemd: tests/lab/cases."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.programs import site_probe
from ddtree_deploy.onhost.service import imports, proc
from ddtree_deploy.onhost.service.base import Footprint
from ddtree_deploy.onhost.service.systemd import sandbox
from tests.ports import free_port

from .host import Host

LISTEN = """
import os, socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return made(tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return made(tmp_path_factory.mktemp("old"))


def made(root: Path) -> Host:
    host = Host(root)
    dist_info(host.site, "0.5.23")
    return host


def dist_info(folder: Path, version: str) -> Path:
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return info


def package(folder: Path, name: str = "sglang") -> Path:
    """Another copy of a package."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    return folder


@dataclass
class Control:
    """A service that starts so; `pids`: its processes now, the main one first."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    pids: tuple[int, ...] = ()
    port: int = 0
    kind: str = "systemd"
    seen: dict[str, str] = field(default_factory=dict)
    command: list[str] | None = None

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        launch = SimpleNamespace(command=self.command)
        self.service = SimpleNamespace(kind=self.kind, name="sglang", launch=launch)
        self.endpoint = SimpleNamespace(port=self.port, url=f"http://127.0.0.1:{self.port}")

    def future_argv(self) -> list[str]:
        return self.argv

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", **self.env}

    def working_folder(self) -> str:
        return self.cwd

    def owner(self) -> str:
        return ""

    def mounts(self) -> dict[str, str]:
        return self.seen

    def socket_unit(self) -> str:
        return ""

    def processes(self) -> Footprint:
        keys = [found.key for found in map(proc.read, self.pids) if found]
        return Footprint(self.pids[0] if self.pids else 0, frozenset(keys))


def look(venv: Host, control: Control, *modules: str, next_start: bool = True) -> imports.Imports:
    planned = site_probe.ask(venv.python, "sglang", modules)
    return imports.look(control, planned, "sglang", modules, next_start=next_start)  # type: ignore[arg-type]


def server(host: Host, *flags: str, **more: Any) -> Control:
    return Control([host.python, *flags, "-m", "sglang.launch_server", "--port", "1"], **more)


def same(found: imports.Imports) -> bool:
    return found == imports.Imports()


def test_case_31_the_venv_of_the_plan_is_no_matter(venv: Host) -> None:
    assert same(look(venv, server(venv)))
    assert same(look(venv, server(venv, "-I", "-u", "-X", "dev")))
    assert same(look(venv, server(venv, env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"})))


def test_case_31_another_interpreter_is_refused_and_both_are_shown(venv: Host, old: Host) -> None:
    found = look(venv, server(old))
    assert "the service imports other code than planned: the next start of sglang: " in found.other
    assert f"site-packages is {old.site}, planned for {venv.site}" in found.other
    assert f"sglang is {old.package}, planned for {venv.package}" in found.other
    assert not found.unknown


@pytest.mark.parametrize("prefix", [["env", "A=1"], ["/usr/bin/env", "-i"], ["taskset", "-c", "0"]])
def test_case_31_behind_a_prefix_too(venv: Host, old: Host, prefix: list[str]) -> None:
    control = server(old)
    control.argv = [*prefix, *control.argv]
    assert str(old.package) in look(venv, control).other


def test_case_31_a_console_script_is_run_by_its_first_line(venv: Host, old: Host) -> None:
    script = venv.root / "venv" / "bin" / "sglang"
    try:
        script.write_text(f"#!{venv.python}\nimport sglang\n")
        script.chmod(0o755)
        assert same(look(venv, Control([str(script), "serve"])))
        script.write_text(f"#!{old.python}\nimport sglang\n")
        assert str(old.package) in look(venv, Control([str(script), "serve"])).other
    finally:
        script.unlink()


def test_case_31_a_bare_name_is_looked_up_as_its_starter_does(venv: Host, old: Host) -> None:
    argv = ["python", "-m", "sglang.launch_server"]
    env = {"PATH": f"{venv.root}/venv/bin"}
    assert same(look(venv, Control(argv, env=env, kind="supervised")))
    assert same(look(venv, Control(["env", *argv], env=env)))
    found = look(venv, Control(argv, env=env))  # systemd does not look there
    assert found.other or found.unknown
    assert str(venv.root) not in str(found.other).partition(", planned")[0]


def test_case_31_an_interpreter_that_is_gone_is_refused(venv: Host) -> None:
    gone = venv.root / "gone" / "bin" / "python"
    found = look(venv, Control([str(gone), "-m", "sglang.launch_server"]))
    assert f"its Python does not answer: [Errno 2] No such file or directory: '{gone.parent.parent}'" in (
        found.other
    )


def test_case_31_another_home_of_python_is_refused(venv: Host, tmp_path: Path) -> None:
    assert "its Python does not answer: " in look(venv, server(venv, env={"PYTHONHOME": "/nowhere"})).other
    library = Path(os.__file__).parent
    there = tmp_path / "lib" / library.name
    there.mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name != "os.py":
            (there / entry.name).symlink_to(entry)
    (there / "os.py").write_text((library / "os.py").read_text())
    found = look(venv, server(venv, env={"PYTHONHOME": str(tmp_path)}))
    assert f"its standard library is {there}, planned for {os.path.realpath(library)}" in found.other


def test_case_31_another_bytecode_cache_is_refused(venv: Host, tmp_path: Path) -> None:
    for control in (
        server(venv, env={"PYTHONPYCACHEPREFIX": str(tmp_path)}),
        server(venv, "-X", f"pycache_prefix={tmp_path}"),
    ):
        assert f"its bytecode is {tmp_path}, planned for beside the sources" in look(venv, control).other
    # -E leaves the variable alone, and so does -I.
    assert same(look(venv, server(venv, "-E", env={"PYTHONPYCACHEPREFIX": str(tmp_path)})))


def test_case_31_without_the_site_module_nothing_is_found(venv: Host) -> None:
    assert "sglang is nothing, planned for" in look(venv, server(venv, "-S")).other


def in_folder(venv: Host, at: Path) -> Control:
    return server(venv, cwd=str(at))


def by_path(venv: Host, at: Path) -> Control:
    return server(venv, env={"PYTHONPATH": f"/nowhere:{at}"})


def by_script(venv: Host, at: Path) -> Control:
    (at / "serve.py").write_text("import sglang\n")
    return Control([venv.python, "-u", "serve.py"], cwd=str(at))


def by_variable_in_front(venv: Host, at: Path) -> Control:
    control = server(venv)
    control.argv = ["env", f"PYTHONPATH={at}", *control.argv]
    return control


WAYS = [in_folder, by_path, by_script, by_variable_in_front]


@pytest.mark.parametrize("way", WAYS)
def test_case_32_a_checkout_that_comes_first_is_refused(
    venv: Host, tmp_path: Path, way: Callable[[Host, Path], Control]
) -> None:
    control = way(venv, package(tmp_path))
    assert f"sglang is {tmp_path}/sglang, planned for {venv.package}" in look(venv, control).other


@pytest.mark.parametrize("way", WAYS)
def test_case_32_a_module_of_its_name_is_refused_too(
    venv: Host, tmp_path: Path, way: Callable[[Host, Path], Control]
) -> None:
    (tmp_path / "sglang.py").write_text("raise SystemExit('imported')\n")
    control = way(venv, tmp_path)
    assert f"sglang is {tmp_path}/sglang.py, planned for {venv.package}" in look(venv, control).other


@pytest.mark.parametrize("way", WAYS)
def test_case_32_a_copy_of_what_the_payload_installs_is_refused(
    venv: Host, tmp_path: Path, way: Callable[[Host, Path], Control]
) -> None:
    control = way(venv, package(tmp_path, "sglang_ddtree"))
    assert same(look(venv, control))
    found = look(venv, control, "sglang_ddtree")
    assert f"sglang_ddtree is {tmp_path}/sglang_ddtree, planned for nothing" in found.other


def test_case_32_a_folder_that_is_not_on_the_path_is_no_matter(venv: Host, tmp_path: Path) -> None:
    package(tmp_path)
    isolated = ["-I"] if sys.version_info < (3, 11) else ["-P"]
    assert same(look(venv, server(venv, *isolated, cwd=str(tmp_path))))
    assert same(look(venv, server(venv, "-E", env={"PYTHONPATH": str(tmp_path)})))
    # A repository's root: a folder without __init__.py yields to the package.
    (tmp_path / "sglang" / "__init__.py").unlink()
    assert same(look(venv, in_folder(venv, tmp_path)))


def test_case_32_a_folder_full_of_modules_does_not_spoil_the_question(venv: Host, tmp_path: Path) -> None:
    for name in ("json", "os", "importlib", "sysconfig"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    assert same(look(venv, in_folder(venv, tmp_path)))


def test_case_32_a_second_dist_info_before_the_venvs_is_refused(venv: Host, tmp_path: Path) -> None:
    dist_info(tmp_path, "0.5.9")
    found = look(venv, by_path(venv, tmp_path))
    assert "version of sglang is 0.5.9, planned for 0.5.23" in found.other


def test_two_versions_in_one_site_packages_are_both_told(venv: Host) -> None:
    info = dist_info(venv.site, "0.5.22")
    try:
        assert site_probe.ask(venv.python).packages["sglang"].version == "0.5.22 and 0.5.23"
    finally:
        (info / "METADATA").unlink()
        info.rmdir()


def test_case_32_a_pth_file_that_a_variable_moves_is_asked(venv: Host, tmp_path: Path) -> None:
    hook = venv.site / "switch.pth"
    hook.write_text("import os, sys; 'SWITCH' in os.environ and sys.path.insert(0, os.environ['SWITCH'])\n")
    try:
        assert same(look(venv, server(venv)))
        package(tmp_path)
        assert str(tmp_path) in look(venv, server(venv, env={"SWITCH": str(tmp_path)})).other
    finally:
        hook.unlink()


def test_case_32_an_editable_install_is_where_the_plan_says(venv: Host, tmp_path: Path) -> None:
    """Moved out of site-packages: its source folder as the working folder is the same code."""
    source = tmp_path / "python"
    source.mkdir()
    venv.package.rename(source / "sglang")
    hook = venv.site / "__editable__.sglang.pth"
    hook.write_text(f"{source}\n")
    try:
        assert same(look(venv, server(venv, cwd=str(source))))
        link = tmp_path / "link"
        link.symlink_to(source)
        assert same(look(venv, server(venv, cwd=str(link))))
        assert str(tmp_path / "other") in look(venv, in_folder(venv, package(tmp_path / "other"))).other
    finally:
        hook.unlink()
        (source / "sglang").rename(venv.package)


def test_case_32_the_users_own_site_is_asked(venv: Host, tmp_path: Path) -> None:
    config = venv.root / "venv" / "pyvenv.cfg"
    text = config.read_text()
    there = tmp_path / Path(site.getusersitepackages()).relative_to(site.getuserbase())
    package(there, "sglang_ddtree")
    control = server(venv, env={"PYTHONUSERBASE": str(tmp_path)})
    try:
        assert same(look(venv, control, "sglang_ddtree")), "a venv has none"
        config.write_text(text.replace("= false", "= true"))
        assert f"sglang_ddtree is {there}/sglang_ddtree" in look(venv, control, "sglang_ddtree").other
        control.argv.insert(1, "-s")
        assert same(look(venv, control, "sglang_ddtree"))
    finally:
        config.write_text(text)


@pytest.mark.parametrize(
    "argv",
    [
        ["/bin/sh", "-c", "exec python -m sglang.launch_server"],
        ["/nowhere/uv", "run", "sglang"],
        ["/bin/true"],
    ],
)
def test_a_command_line_that_tells_nothing_is_called_unknown(venv: Host, argv: list[str]) -> None:
    found = look(venv, Control(argv))
    assert found.unknown.startswith("which code the service imports is unknown: the next start of sglang: ")
    assert not found.other


@pytest.fixture
def run() -> Iterator[Callable[..., tuple[int, int]]]:
    """Start something that listens; (pid, port)."""
    started: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str], **more: Any) -> tuple[int, int]:
        port = free_port()
        words = [word.replace("PORT", str(port)) for word in argv]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
        started.append(child)
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        return child.pid, port

    yield start
    for child in started:
        child.communicate()


def serve(folder: Path) -> Path:
    """A package that serves, by the name of SGLang's."""
    path = folder / "sglang" / "launch_server.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LISTEN)
    (folder / "sglang" / "__init__.py").write_text("")
    return folder


@pytest.mark.parametrize("next_start", [True, False])
def test_case_31_a_process_of_another_venv_is_refused(
    venv: Host, old: Host, run: Callable[..., tuple[int, int]], next_start: bool
) -> None:
    serve(old.site)
    pid, port = run([old.python, "-m", "sglang.launch_server", "PORT"], cwd="/")
    found = look(venv, server(venv, pids=(pid,), port=port), next_start=next_start)
    assert f"process {pid}: " in found.other and str(old.package) in found.other
    assert "the next start" not in found.other, "that one is right"


def test_case_32_the_folder_and_the_environment_of_a_process_are_asked(
    venv: Host, tmp_path: Path, run: Callable[..., tuple[int, int]]
) -> None:
    there = serve(tmp_path)
    argv = [venv.python, "-m", "sglang.launch_server", "PORT"]
    ways: list[dict[str, Any]] = [{"cwd": there}, {"cwd": "/", "env": {"PYTHONPATH": str(there)}}]
    for more in ways:
        pid, port = run(argv, **more)
        found = look(venv, server(venv, pids=(pid,), port=port), next_start=False)
        assert f"process {pid}: sglang is {there}/sglang, planned for {venv.package}" in found.other


def test_a_process_as_planned_is_asked_once_together_with_the_next_start(
    venv: Host, run: Callable[..., tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(venv.site)
    pid, port = run([venv.python, "-m", "sglang.launch_server", "PORT"], cwd="/", env={"DDTREE_SERVICE": "x"})
    asked: list[dict[str, str]] = []
    ask_as = site_probe.ask_as

    def counted(*args: Any, **more: Any) -> site_probe.Site:
        asked.append(more["env"])
        return ask_as(*args, **more)

    planned = site_probe.ask(venv.python)
    monkeypatch.setattr(imports.site_probe, "ask_as", counted)
    control = server(venv, pids=(pid,), port=port)
    assert same(imports.look(control, planned, "sglang", (), next_start=True))  # type: ignore[arg-type]
    assert len(asked) == 1 and "DDTREE_SERVICE" not in asked[0]


def test_a_shell_wrapper_is_told_by_the_process_that_serves(
    venv: Host, old: Host, run: Callable[..., tuple[int, int]]
) -> None:
    serve(venv.site)
    serve(old.site)
    for host, right in ((venv, True), (old, False)):
        line = f"{host.python} -m sglang.launch_server PORT; exit 0"
        argv = ["/bin/sh", "-c", line]
        pid, port = run(argv, cwd="/")
        (child,) = proc.descendants(proc.table(), pid) - {pid}
        control = Control(argv, pids=(pid, child), port=port)
        found = look(venv, control)
        assert not found.unknown and bool(found.other) is not right
        assert right or f"process {child}: " in found.other
        # What a whole `launch.command` of ours will do is not told by what runs now.
        control.service.launch.command = argv
        assert "a shell (sh)" in look(venv, control).unknown


def test_a_process_in_a_mount_of_its_own_is_refused(
    venv: Host, old: Host, run: Callable[..., tuple[int, int]]
) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    serve(venv.site)
    serve(old.site)
    line = f"mount --bind {old.site} {venv.site}; exec {venv.python} -m sglang.launch_server PORT"
    pid, port = run(["unshare", "--mount", "sh", "-c", line], cwd="/")
    found = look(venv, server(venv, pids=(pid,), port=port), next_start=False)
    assert f"process {pid}: {venv.site} is not the host's" in found.other


@pytest.mark.parametrize(
    ("shown", "setting"),
    [
        ({}, ""),
        ({"RootDirectory": "/srv/root"}, "RootDirectory=/srv/root"),
        ({"BindPaths": "/old:{venv}:rbind"}, "BindPaths=/old:{venv}:rbind"),
        ({"BindReadOnlyPaths": "{venv}:{venv}:rbind", "TemporaryFileSystem": "/:ro"}, ""),
        ({"TemporaryFileSystem": "{parent}:ro"}, "TemporaryFileSystem={parent}:ro"),
        ({"BindPaths": "/x:/y: /old:{site}/sglang:"}, "BindPaths=/old:{site}/sglang:"),
        ({"PrivateTmp": "no", "ProtectHome": "read-only", "RootDirectory": "/"}, ""),
        ({"MountImages": "/x.img:/elsewhere:"}, ""),
    ],
)
def test_what_a_sandbox_puts_in_the_place_of_the_venv_is_refused(
    venv: Host, shown: dict[str, str], setting: str
) -> None:
    names = {"venv": str(venv.root / "venv"), "parent": str(venv.root), "site": str(venv.site)}
    seen = sandbox.mounts({key: value.format(**names) for key, value in shown.items()})
    found = look(venv, server(venv, seen=seen))
    assert (f"is not the host's ({setting.format(**names)})" in found.other) is bool(setting)


def test_the_names_that_a_plan_installs() -> None:
    refs = ["site:tiny", "site:tiny/x.py", "site:one.py", "site:tiny-1.0.dist-info/RECORD", "sglang:srt/x.py"]
    assert site_probe.tops([*refs, "site:hook.pth"]) == {"tiny", "one"}


@pytest.mark.parametrize(
    ("action", "next_start", "code"),
    [("rollout", True, 6), ("verify", True, 6), ("rollout", False, 0), ("rollback", True, None)],
)
def test_case_31_other_code_fails_preflight_and_the_start_but_bars_no_way_back(
    venv: Host, old: Host, action: str, next_start: bool, code: int | None
) -> None:
    control: Any = server(old, pids=(os.getpid(),))
    control.mask = lambda text: text
    plan = SimpleNamespace(action=action, package_dir=str(venv.package), targets=[], python=venv.python)
    ctx: Any = SimpleNamespace(plan=plan)
    planned = imports.planned(ctx)
    if code is None:
        assert str(old.package) in imports.check(ctx, control, planned, next_start=next_start)
        return
    with pytest.raises(StepFailed) as failed:
        imports.check(ctx, control, planned, next_start=next_start)
    assert failed.value.exit_code == code
    assert "site-packages is " in failed.value.reason and f"planned for {venv.site}" in failed.value.reason
