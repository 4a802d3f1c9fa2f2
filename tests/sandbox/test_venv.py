"""The venv's recipe as data: pins, stamp, which torch pip would fetch, what of its output is told."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddtree_deploy.sandbox import pip_run, standins_install, torch_build, venv
from ddtree_deploy.sandbox.errors import SandboxError

DATA = Path(__file__).parent / "data"
TEXT = "# pins\nsglang==0.5.23\n\ntorch==2.13.0  # CPU\n"


def report(name: str) -> dict[str, object]:
    data: dict[str, object] = json.loads((DATA / f"report_{name}.json").read_text())
    return data


def test_the_shipped_requirements_are_pinned_and_complete() -> None:
    text = venv.REQUIREMENTS.read_text()
    pins = dict(pin.split("==") for pin in venv.pinned(text))
    assert pins["sglang"] == "0.5.23"
    assert pins["torch"] == venv.torch_pin(text) == "2.13.0"
    assert pins["triton"] == "3.7.1"
    assert not any("+" in version for version in pins.values()), "a local version would tie us to one index"
    assert not any(name.startswith("nvidia") for name in pins)


def test_a_loose_requirement_is_refused() -> None:
    with pytest.raises(SandboxError, match=r"not pinned in requirements.txt: torch>=2"):
        venv.pinned("sglang==0.5.23\ntorch>=2\n")


def test_stamp_changes_with_pins_python_and_standins_only() -> None:
    base = venv.wanted("3.11.7", TEXT, "s")
    assert venv.wanted("3.11.7", "torch==2.13.0\nsglang==0.5.23\n# another comment", "s") == base
    others = (
        venv.wanted("3.11.7", TEXT.replace("2.13.0", "2.14.0"), "s"),
        venv.wanted("3.12.1", TEXT, "s"),
        venv.wanted("3.11.7", TEXT, "t"),
    )
    assert all(other != base for other in others)


def test_stamp_survives_a_round_trip_and_garbage_is_no_stamp(tmp_path: Path) -> None:
    stamp = venv.wanted("3.11.7", TEXT, "s")
    stamp.write(tmp_path)
    assert venv.Stamp.read(tmp_path) == stamp
    (tmp_path / "ddtree-sandbox.json").write_text('{"requirements": 1')
    assert venv.Stamp.read(tmp_path) is None
    assert venv.Stamp.read(tmp_path / "absent") is None


def test_state_of_a_venv(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    assert venv.state(folder) == "absent"
    (folder / "bin").mkdir(parents=True)
    assert venv.state(folder) == "outdated", "not finished"
    (folder / "bin" / "python3").touch()
    text = venv.REQUIREMENTS.read_text()
    venv.wanted("3.11.7", text, standins_install.digest()).write(folder)
    assert venv.state(folder) == "ready"
    venv.wanted("3.11.7", text, "of older stand-ins").write(folder)
    assert venv.state(folder) == "outdated"


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, list[str]]]:
    """A venv of today's recipe, and the list of what is done to it from here on; pip itself does not run."""
    done: list[str] = []
    folder = tmp_path / "venv"
    site = folder / "lib" / "python3.11" / "site-packages"
    (site / "torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(sys.executable)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(TEXT)
    monkeypatch.setattr(venv, "REQUIREMENTS", requirements)
    monkeypatch.setattr(venv, "_build", lambda *_args, **_options: done.append("build"))
    monkeypatch.setattr(pip_run.Pip, "install", lambda _self, *args: done.append(f"install {args[0]}"))
    monkeypatch.setattr(standins_install, "install", lambda _site: done.append("stand-ins"))
    venv.wanted(platform.python_version(), TEXT, standins_install.digest()).write(folder)
    yield folder, done


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda _venv, _text: None, []),
        (lambda _venv, text: text.write_text(TEXT + "numba==0.1\n"), ["install --no-deps", "stand-ins"]),
        (lambda _venv, text: text.write_text(TEXT.replace("2.13.0", "2.14.1")), ["build", "stand-ins"]),
        (lambda folder, _text: (folder / "ddtree-sandbox.json").unlink(), ["build", "stand-ins"]),
        (lambda folder, _text: (folder / "bin" / "python3").unlink(), ["build", "stand-ins"]),
    ],
    ids=["nothing", "a pin", "torch", "not finished", "no interpreter"],
)
def test_only_what_changed_is_made_anew(
    finished: tuple[Path, list[str]], change: Callable[[Path, Path], None], expected: list[str]
) -> None:
    folder, done = finished
    change(folder, venv.REQUIREMENTS)
    changed = venv.ensure(folder, folder.parent / "log", lambda _line: None)
    assert (changed, done) == (bool(expected), expected)
    assert venv.Stamp.read(folder) == venv.wanted(
        platform.python_version(), venv.REQUIREMENTS.read_text(), standins_install.digest()
    )


@pytest.mark.parametrize(
    ("versions", "offered"),
    [
        (["2.15.0", "2.13.0+cpu", "2.13.0"], True),
        (["2.13.0"], False),
        (["2.15.0+cpu", "2.13.0"], False),
        (["2.13.0+cpu", "2.13.0+cu130"], False),
        ([], False),
    ],
)
def test_whether_pip_would_take_a_cpu_build(versions: list[str], offered: bool) -> None:
    assert torch_build.cpu_build_offered(versions, "2.13.0") is offered


def test_a_cuda_build_is_recognised_and_its_size_added_up() -> None:
    sizes = {"torch": 500, "cuda_toolkit": 1, "nvidia_cublas": 400, "nvidia_cudnn": 99}
    build = torch_build.from_report(
        report("cuda"), lambda url: next(size for name, size in sizes.items() if f"/{name}" in url)
    )
    assert build.cuda
    assert build.packages == ("cuda-toolkit", "nvidia-cublas", "nvidia-cudnn-cu13")
    assert build.size == 1000
    first, second = torch_build.advice(build)
    assert "CUDA build: torch 2.13.0 and 3 CUDA packages" in first
    assert "--torch-index-url" in second and "PIP_FIND_LINKS" in second


def test_an_unknown_size_is_said_to_be_unknown() -> None:
    build = torch_build.from_report(report("cuda"), lambda _url: None)
    assert build.size is None
    assert "size unknown" in torch_build.advice(build)[0]


def test_a_cpu_build_is_no_cause_for_alarm() -> None:
    asked: list[str] = []
    build = torch_build.from_report(report("cpu"), lambda url: asked.append(url) or 1)
    assert (build.cuda, build.version, asked) == (False, "2.13.0+cpu", [])


def test_size_of_a_local_file(tmp_path: Path) -> None:
    wheel = tmp_path / "a wheel.whl"
    wheel.write_bytes(b"x" * 123)
    assert torch_build.remote_size(wheel.as_uri()) == 123
    assert torch_build.remote_size((tmp_path / "absent").as_uri()) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Downloading triton-3.7.1.whl (197.7 MB)", "downloading triton-3.7.1.whl (197.7 MB)"),
        ("Downloading https://index/x/torch-2.whl (1.2 GB)", "downloading torch-2.whl (1.2 GB)"),
        ("  Downloading six-1.16-py3-none-any.whl (11 kB)", None),
        ("  Downloading jedi-0.20.1-py2.py3-none-any.whl (4.9 MB)", None),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("Collecting six", None),
        ("  Downloading", None),
    ],
)
def test_what_of_pips_output_is_told(line: str, told: str | None) -> None:
    assert pip_run.telling(line) == told


def test_pip_failing_says_why_and_where_to_read_more(tmp_path: Path) -> None:
    pip = pip_run.Pip(Path(sys.executable), tmp_path / "build.log", lambda _line: None, None)
    script = "print('ERROR: No matching distribution found for nosuch==1'); raise SystemExit(1)"
    with pytest.raises(SandboxError, match="No matching distribution found for nosuch==1") as caught:
        pip.run([sys.executable, "-c", script])
    assert "the venv is not finished" in caught.value.render()
    assert "nosuch==1" in (tmp_path / "build.log").read_text()


def test_a_python_outside_the_pins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venv, "PYTHONS", ((3, 99),))
    with pytest.raises(SandboxError, match=r"the pins need 3\.99"):
        venv.find_python(sys.executable)
    with pytest.raises(SandboxError, match="none is on PATH") as caught:
        venv.find_python()
    assert "--python" in caught.value.next_command


def test_something_that_is_no_python_is_refused() -> None:
    with pytest.raises(SandboxError, match="nosuch-python"):
        venv.find_python("/nosuch-python")


def test_standins_are_installed_as_a_distribution_with_an_entry_point(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    standins_install.install(site)
    (site / "sgl_kernel" / "left_over.py").touch()
    standins_install.install(site)
    assert not (site / "sgl_kernel" / "left_over.py").exists()
    code = (
        "from importlib.metadata import distribution as d; x = d('sglang-cpu-sandbox');"
        "print([(e.group, e.name, e.value) for e in x.entry_points]);"
        "print(sum(1 for f in x.files if not f.locate().exists()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(site)},
    )
    point = ("sglang.srt.plugins", "cpu_sandbox", "sglang_cpu_sandbox.plugin:register")
    assert done.stdout.splitlines() == [str([point]), "0"]


def test_the_standins_hold_nothing_of_the_payload() -> None:
    for name, content in standins_install.files().items():
        assert b"ddtree" not in content.lower().replace(b"ddtree-deploy", b""), name
