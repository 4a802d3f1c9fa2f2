"""The sandbox's venv: the real SGLang on CPU torch, pinned, with the stand-ins for what has no CPU build."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ddtree_deploy.sandbox import standins_install, torch_build
from ddtree_deploy.sandbox.errors import SandboxError
from ddtree_deploy.sandbox.pip_run import Pip

Say = Callable[[str], None]

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
PIP = "pip==26.3"
PYTHONS = ((3, 11), (3, 12), (3, 13))
DISK_NEEDED = 6 * 10**9
RECIPE = 1  # raise it when the steps of `_build` change


@dataclass(frozen=True)
class Stamp:
    """What a finished venv was made from; kept in the venv, written last."""

    requirements: str
    python: str
    standins: str

    @classmethod
    def read(cls, venv: Path) -> Stamp | None:
        """The stamp of this venv, or None where there is none (never made, or not finished)."""
        try:
            data = json.loads(_stamp_file(venv).read_text())
            return cls(**{name: str(data[name]) for name in ("requirements", "python", "standins")})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, venv: Path) -> None:
        temporary = _stamp_file(venv).with_suffix(".tmp")
        temporary.write_text(json.dumps(self.__dict__, indent=1) + "\n")
        temporary.replace(_stamp_file(venv))


def wanted(python: str, requirements: str, standins: str) -> Stamp:
    """The stamp that a venv of today's recipe has.

    Args:
        python: full version of the interpreter.
        requirements: text of the requirements file; comments and blank lines do not count.
        standins: digest of the stand-ins.
    """
    pins = sorted(pinned(requirements))
    text = "\n".join([f"recipe {RECIPE}", PIP, *pins])
    return Stamp(hashlib.sha256(text.encode()).hexdigest(), python, standins)


def pinned(requirements: str) -> list[str]:
    """The ``name==version`` lines of a requirements file; anything looser is an error."""
    lines = [line.split("#")[0].strip() for line in requirements.splitlines()]
    pins = [line for line in lines if line]
    loose = [line for line in pins if line.count("==") != 1]
    if loose:
        raise SandboxError(f"not pinned in {REQUIREMENTS.name}: {', '.join(loose)}", stage="venv")
    return pins


def torch_pin(requirements: str) -> str:
    """The version of torch that the requirements name."""
    return next(pin.split("==")[1] for pin in pinned(requirements) if pin.startswith("torch=="))


def ensure(
    venv: Path,
    log: Path,
    say: Say,
    *,
    python: str | None = None,
    torch_index_url: str | None = None,
    confirm: Callable[[str], bool] | None = None,
    requirements: Path | None = None,
) -> bool:
    """Make the venv, or keep the one that is there if today's recipe would give the same.

    Args:
        venv: where it lies, or will.
        log: file for pip's whole output.
        say: gets a line per thing worth telling.
        python: interpreter to make it with; by default this one, or the first fitting one on PATH.
        torch_index_url: package index with CPU builds of torch, used beside the configured ones.
        confirm: asked, with the reason, before a CUDA build of torch is fetched; None: say it and go on.
        requirements: other pins than the sandbox's own, as a file that stays (`versions` writes such).

    Returns:
        True if anything was installed.

    Raises:
        SandboxError: no fitting Python, no space, pip failed, or the download was declined.
    """
    requirements = requirements or REQUIREMENTS
    if python is None and state(venv, requirements) == "ready" and _works(venv):
        say("venv: kept, as pinned")
        return False
    interpreter = find_python(python)
    target = wanted(_version(interpreter), requirements.read_text(), standins_install.digest())
    have = Stamp.read(venv)
    if have == target and _works(venv):
        say("venv: kept, as pinned")
        return False
    if have and (have.requirements, have.python) == (target.requirements, target.python) and _works(venv):
        say("venv: kept; the stand-ins have changed and are installed anew")
    elif have and have.python == target.python and _works(venv) and _holds_torch_of(venv, requirements):
        _update(venv, requirements, Pip(python_of(venv), log, say, torch_index_url), say)
    else:
        pip = Pip(python_of(venv), log, say, torch_index_url)
        _build(venv, interpreter, requirements, pip, log=log, say=say, confirm=confirm)
    standins_install.install(site_packages(venv))
    target.write(venv)
    return True


def state(venv: Path, requirements: Path | None = None) -> str:
    """``ready``, ``outdated`` (made by another recipe, or not finished) or ``absent``; changes nothing."""
    have = Stamp.read(venv)
    if have is None:
        return "outdated" if venv.exists() else "absent"
    text = (requirements or REQUIREMENTS).read_text()
    current = wanted(have.python, text, standins_install.digest())
    return "ready" if have == current and python_of(venv).exists() else "outdated"


def find_python(wanted_python: str | None = None) -> str:
    """An interpreter that the pins fit: the given one, this one, or the first on PATH.

    Raises:
        SandboxError: there is none, or this machine is not a Linux on x86-64.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SandboxError(
            f"the sandbox needs Linux on x86-64, this is {sys.platform} on {platform.machine()}", stage="venv"
        )
    names = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    if wanted_python is not None:
        version = _version(wanted_python)
        if _short(version) not in PYTHONS:
            raise SandboxError(f"{wanted_python} is Python {version}; the pins need {names}", stage="venv")
        return wanted_python
    if sys.version_info[:2] in PYTHONS:
        return sys.executable
    for major, minor in PYTHONS:
        found = shutil.which(f"python{major}.{minor}")
        if found:
            with contextlib.suppress(SandboxError):
                _version(found)
                return found
    raise SandboxError(
        f"SGLang's pins need Python {names}; this is {platform.python_version()} and none is on PATH",
        stage="venv",
        next_command="ddtree-deploy sandbox up --python PATH",
    )


def site_packages(venv: Path) -> Path:
    """The folder that packages are installed in."""
    found = sorted(venv.glob("lib/python3.*/site-packages"))
    if not found:
        raise SandboxError(f"{venv} has no site-packages", stage="venv")
    return found[0]


def python_of(venv: Path) -> Path:
    """The venv's interpreter."""
    return venv / "bin" / "python3"


def _build(
    venv: Path,
    interpreter: str,
    requirements: Path,
    pip: Pip,
    *,
    log: Path,
    say: Say,
    confirm: Callable[[str], bool] | None,
) -> None:
    began = time.monotonic()
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    free = shutil.disk_usage(venv.parent).free
    if free < DISK_NEEDED:
        raise SandboxError(
            f"{free / 1e9:.1f} GB are free in {venv.parent}, the venv may need {DISK_NEEDED / 1e9:.0f} GB",
            stage="venv",
        )
    say(f"venv: making it with Python {_version(interpreter)} (once; a few minutes)")
    pip.run([interpreter, "-m", "venv", str(venv)])
    pip.install("--upgrade", PIP)
    _tell_about_torch(pip, requirements, say, confirm)
    pip.install(f"torch=={torch_pin(requirements.read_text())}", "--constraint", str(requirements))
    pip.install("--no-deps", "--requirement", str(requirements))
    say(f"venv: made in {time.monotonic() - began:.0f} s")


def _update(venv: Path, requirements: Path, pip: Pip, say: Say) -> None:
    """Bring a finished venv to other pins; packages that are pinned no more stay, and harm nothing."""
    say("venv: kept; the pins have changed and are installed over it")
    _stamp_file(venv).unlink()  # interrupted, it is made anew
    pip.install("--no-deps", "--requirement", str(requirements))


def _holds_torch_of(venv: Path, requirements: Path) -> bool:
    version = torch_pin(requirements.read_text())
    found = [path.name for path in site_packages(venv).glob("torch-*.dist-info")]
    return any(name.removesuffix(".dist-info").split("+")[0] == f"torch-{version}" for name in found)


def _tell_about_torch(pip: Pip, requirements: Path, say: Say, confirm: Callable[[str], bool] | None) -> None:
    """Before anything big is fetched: say so if it would be a CUDA build."""
    version = torch_pin(requirements.read_text())
    if torch_build.cpu_build_offered(pip.versions_of("torch"), version):
        return
    found = torch_build.from_report(pip.dry_run(f"torch=={version}", "--constraint", str(requirements)))
    if not found.cuda:
        return
    for line in torch_build.advice(found):
        say(f"venv: {line}")
    if confirm is not None and not confirm(f"Fetch the CUDA build of torch ({found.size_text})?"):
        raise SandboxError(
            "the CUDA build of torch was declined",
            stage="venv",
            state="the venv is not made",
            next_command="ddtree-deploy sandbox up --torch-index-url URL",
        )


def _stamp_file(venv: Path) -> Path:
    return venv / "ddtree-sandbox.json"


def _works(venv: Path) -> bool:
    try:
        return subprocess.run([python_of(venv), "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _version(interpreter: str) -> str:
    code = "import platform, venv, ensurepip; print(platform.python_version())"
    try:
        done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SandboxError(f"{interpreter}: {error.strerror}", stage="venv") from None
    if done.returncode != 0:
        last: Iterable[str] = done.stderr.strip().splitlines()[-1:]
        raise SandboxError(
            f"{interpreter} cannot make a venv: {''.join(last)}",
            stage="venv",
            next_command="apt-get install python3-venv",
        )
    return done.stdout.strip()


def _short(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
