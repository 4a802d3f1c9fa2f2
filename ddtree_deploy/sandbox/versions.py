"""Venvs with the other releases of SGLang that the payload is tested on.

``python -m ddtree_deploy.sandbox.versions FOLDER VERSION...`` makes ``FOLDER/VERSION/venv`` for each, as the
sandbox makes its own: the same pins but for those of ``requirements-VERSION.txt``, the same stand-ins.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddtree_deploy.sandbox import venv
from ddtree_deploy.sandbox.errors import SandboxError


def available() -> list[str]:
    """The releases that there are pins for, beside the sandbox's own."""
    names = (path.stem for path in venv.HERE.glob("requirements-*.txt"))
    return sorted(name.removeprefix("requirements-") for name in names)


def requirements_text(version: str) -> str:
    """The whole list of pins for a release.

    Raises:
        SandboxError: there are none for it.
    """
    changes = venv.HERE / f"requirements-{version}.txt"
    if not changes.exists():
        raise SandboxError(
            f"no pins for SGLang {version}; there are some for {', '.join(available())}", stage="venv"
        )
    pins = dict(pin.split("==") for pin in venv.pinned(venv.REQUIREMENTS.read_text()))
    changed = dict(pin.split("==") for pin in venv.pinned(changes.read_text()))
    unknown = sorted(changed.keys() - pins.keys())
    if unknown:
        raise SandboxError(f"{changes.name} names what requirements.txt does not: {', '.join(unknown)}")
    return "".join(f"{name}=={pin}\n" for name, pin in sorted((pins | changed).items()))


def make(folder: Path, version: str, say: venv.Say) -> Path:
    """Make, or keep, the venv of one release. Returns its interpreter."""
    place = folder / version
    place.mkdir(parents=True, exist_ok=True)
    requirements = place / "requirements.txt"
    requirements.write_text(requirements_text(version))
    venv.ensure(
        place / "venv", place / "pip.log", lambda line: say(f"{version} {line}"), requirements=requirements
    )
    return venv.python_of(place / "venv")


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: python -m ddtree_deploy.sandbox.versions FOLDER VERSION...", file=sys.stderr)
        return 2
    try:
        for version in arguments[1:]:
            print(make(Path(arguments[0]).resolve(), version, lambda line: print(line, flush=True)))
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
