"""The sandbox's venv: the real SGLang on CPU torch, pinned, with the stand-ins for what has no CPU build."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
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
) -> bool:
    """Make the venv, or keep the one that is there if today's recipe would give the same.

    Args:
        venv: where it lies, or will.
        log: file for pip's whole output.
        say: gets a line per thing worth telling.
        python: interpreter to make it with; by default this one, or the first fitting one on PATH.
        torch_index_url: package index with CPU builds of torch, used beside the configured ones.
        confirm: asked, with the reason, before a CUDA build of torch is fetched; None: say it and go on.

    Returns:
        True if anything was installed.

    Raises:
        SandboxError: no fitting Python, no space, pip failed, or the download was declined.
    """
    if python is None and state(venv) == "ready" and _works(venv):
        say("venv: kept, as pinned")
        return False
    interpreter = find_python(python)
    target = wanted(_version(interpreter), REQUIREMENTS.read_text(), standins_install.digest())
    have = Stamp.read(venv)
    if have == target and _works(venv):
        say("venv: kept, as pinned")
        return False
    if have and (have.requirements, have.python) == (target.requirements, target.python) and _works(venv):
        say("venv: kept; the stand-ins have changed and are installed anew")
    else:
        _build(venv, interpreter, log=log, say=say, torch_index_url=torch_index_url, confirm=confirm)
    standins_install.install(site_packages(venv))
    target.write(venv)
    return True


def state(venv: Path) -> str:
    """``ready``, ``outdated`` (made by another recipe, or not finished) or ``absent``; changes nothing."""
    have = Stamp.read(venv)
    if have is None:
        return "outdated" if venv.exists() else "absent"
    current = wanted(have.python, REQUIREMENTS.read_text(), standins_install.digest())
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
    *,
    log: Path,
    say: Say,
    torch_index_url: str | None,
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
    pip = Pip(venv, log, say, torch_index_url)
    say(f"venv: making it with Python {_version(interpreter)} (once; a few minutes)")
    pip.run([interpreter, "-m", "venv", str(venv)])
    pip.install("--upgrade", PIP)
    version = torch_pin(REQUIREMENTS.read_text())
    _tell_about_torch(pip, version, say, confirm)
    pip.install(f"torch=={version}", "--constraint", str(REQUIREMENTS))
    pip.install("--no-deps", "--requirement", str(REQUIREMENTS))
    say(f"venv: made in {time.monotonic() - began:.0f} s")


def _tell_about_torch(pip: Pip, version: str, say: Say, confirm: Callable[[str], bool] | None) -> None:
    """Before anything big is fetched: say so if it would be a CUDA build."""
    if torch_build.cpu_build_offered(pip.versions_of("torch"), version):
        return
    found = torch_build.from_report(pip.dry_run(f"torch=={version}", "--constraint", str(REQUIREMENTS)))
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


class Pip:
    """pip of one venv: its output goes to a log, the telling lines to ``say``."""

    def __init__(self, venv: Path, log: Path, say: Say, torch_index_url: str | None) -> None:
        self._python = str(python_of(venv))
        self._log = log
        self._say = say
        self._index = ["--extra-index-url", torch_index_url] if torch_index_url else []
        self._environment = os.environ | {
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_REQUIRE_VIRTUALENV": "0",
            "PYTHONNOUSERSITE": "1",
        }
        for name in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"):
            self._environment.pop(name, None)

    def install(self, *arguments: str) -> None:
        self.run([*self._pip("install"), "--no-compile", "--progress-bar=off", *self._index, *arguments])

    def versions_of(self, package: str) -> list[str]:
        """All versions that the configured indexes and links offer; empty where pip cannot tell."""
        command = [*self._pip("index"), "versions", package, "--json", *self._index]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment, check=False)
        try:
            versions: list[str] = json.loads(done.stdout)["versions"]
        except (ValueError, KeyError):
            return []
        return versions

    def dry_run(self, *arguments: str) -> dict[str, object]:
        """pip's installation report of what it would install; nothing is installed."""
        report = self._log.with_name("pip-report.json")
        options = ["--dry-run", "--ignore-installed", "--progress-bar=off", "--report", str(report)]
        self.run([*self._pip("install"), *options, *self._index, *arguments])
        result: dict[str, object] = json.loads(report.read_text())
        report.unlink()
        return result

    def run(self, command: list[str]) -> None:
        """Run to the end; its output is logged.

        Raises:
            SandboxError: it failed; the last lines are in the message.
        """
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment,
            )
            assert child.stdout is not None
            tail: list[str] = []
            for line in child.stdout:
                log.write(line)
                tail = [*tail[-5:], line.strip()]
                if (news := telling(line)) is not None:
                    self._say(f"venv: {news}")
        if child.wait() != 0:
            raise SandboxError(
                f"pip failed: {' | '.join(text for text in tail if text)}",
                stage="venv",
                state="the venv is not finished",
                next_command=f"less {self._log}",
            )

    def _pip(self, verb: str) -> list[str]:
        return [self._python, "-m", "pip", verb]


def telling(line: str) -> str | None:
    """What of pip's output a waiting person wants to see: big downloads, and the start of the copying."""
    words = line.split()
    if line.startswith("Installing collected packages:"):
        return f"installing {len(words) - 3} packages"
    if len(words) == 4 and words[0] == "Downloading" and words[-1] in ("MB)", "GB)"):
        size = float(words[2].lstrip("("))
        if size >= 10 or words[-1] == "GB)":
            return f"downloading {words[1].rsplit('/', 1)[-1]} {words[2]} {words[3]}"
    return None


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
