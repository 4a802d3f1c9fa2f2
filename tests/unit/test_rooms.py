"""The rooms of the house: who may import whom. Read from the sources, whether a line is ever run or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ddtree_deploy"
# From the top floor down; a room imports only from rooms further down.
HOUSE = (
    "__main__",
    "entry",
    "cli",
    "commands",
    "sandbox",
    "report",
    "console",
    "running",
    "planning",
    "inputs",
    "ssh",
    "text",
    "streams",
    "onhost",
    "errors",
)
ONHOST = (
    "main",
    "entry",
    "run",
    "steps",
    "measure",
    "recovery",
    "staging",
    "facts",
    "service",
    "programs",
    "context",
    "state",
    "judge",
    "venv",
    "wire",
)
# What of the host's part the controller may import.
SHARED = ("wire", "judge", "staging.patch")


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "standins" in path.parts:  # another package, which is installed in the sandbox's venv
            continue
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


MODULES = modules()


def imports(module: str) -> Iterator[str]:
    """The modules of ours that one imports, at any place in it."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            module = name
            while module and module not in MODULES:
                module = module.rpartition(".")[0]
            if module:
                yield module


def room(module: str, under: str) -> str:
    return module.removeprefix(f"{under}.").partition(".")[0] if module != under else ""


@pytest.mark.parametrize(
    ("under", "floors"), [("ddtree_deploy", HOUSE), ("ddtree_deploy.onhost", ONHOST)], ids=["house", "onhost"]
)
def test_imports_run_one_way_between_rooms(under: str, floors: tuple[str, ...]) -> None:
    inside = [m for m in MODULES if m.startswith(f"{under}.")]
    assert {room(m, under) for m in inside} == set(floors)  # a new room says here which floor it is on
    upwards = [
        f"{module} imports {other}"
        for module in inside
        for other in imports(module)
        if other.startswith(f"{under}.")
        and room(other, under) != room(module, under)
        and floors.index(room(other, under)) <= floors.index(room(module, under))
    ]
    assert upwards == []


@pytest.mark.parametrize("module", sorted({m.rpartition(".")[0] for m in MODULES if "." in m}))
def test_a_room_has_no_circle_inside(module: str) -> None:
    """Neither between its modules nor between its folders."""
    inside = {m for m in MODULES if m.startswith(f"{module}.")}
    arrows: dict[str, set[str]] = {}
    for one in inside:
        here = room(one, module)
        arrows.setdefault(here, set()).update(room(o, module) for o in imports(one) if o in inside)
        arrows[here].discard(here)
    while free := [name for name, to in arrows.items() if not to & arrows.keys()]:
        for name in free:
            del arrows[name]
    assert arrows == {}


def test_the_controller_imports_of_the_host_only_what_both_share() -> None:
    strangers = [
        f"{module} imports {other}"
        for module in MODULES
        if room(module, "ddtree_deploy") not in ("onhost", "sandbox")  # the demo looks at a host itself
        for other in imports(module)
        if other.startswith("ddtree_deploy.onhost.")
        and not any(
            f"{other}.".startswith(f"ddtree_deploy.onhost.{shared}.")
            or other == f"ddtree_deploy.onhost.{shared}"
            for shared in SHARED
        )
    ]
    assert strangers == []


def test_the_host_imports_nothing_of_the_rest_and_only_the_standard_library() -> None:
    import sys

    outside = []
    for module, path in MODULES.items():
        if not module.startswith("ddtree_deploy.onhost"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            outside += [f"{module}: {n}" for n in names if n.partition(".")[0] not in sys.stdlib_module_names]
        outside += [f"{module}: {o}" for o in imports(module) if not o.startswith("ddtree_deploy.onhost")]
    assert outside == []


def test_no_room_of_the_host_is_loaded_as_a_whole() -> None:
    """An `__init__` that imports is paid by everybody: the boot guard loads one module alone."""
    eager = [
        module
        for module, path in MODULES.items()
        if module.startswith("ddtree_deploy.onhost")
        and path.name == "__init__.py"
        and any(isinstance(node, ast.ImportFrom) and node.level for node in ast.parse(path.read_text()).body)
    ]
    assert eager == []


SSH_LIBRARIES = ("fabric", "paramiko")


def test_the_ssh_library_is_imported_in_one_room_and_by_its_public_names() -> None:
    wrong = []
    for module, path in MODULES.items():
        inside = room(module, "ddtree_deploy") == "ssh"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif inside and isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                names = [f"paramiko.{node.attr}"]  # of whatever it is: no name of another object is private
            else:
                continue
            for name in names:
                of_library = name.partition(".")[0] in SSH_LIBRARIES
                private = any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
                if of_library and (private or not inside):
                    wrong.append(f"{module}: {name}")
    assert wrong == []
