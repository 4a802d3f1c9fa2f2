"""The pins of the other SGLang releases."""

import ast

import pytest

from ddtree_deploy.sandbox import venv, versions
from ddtree_deploy.sandbox.errors import SandboxError


def pins(text):
    return dict(pin.split("==") for pin in venv.pinned(text))


@pytest.mark.parametrize("version", versions.available())
def test_a_release_has_the_sandboxs_pins_but_for_its_own(version):
    ours, theirs = pins(venv.REQUIREMENTS.read_text()), pins(versions.requirements_text(version))
    assert theirs["sglang"] == version
    assert theirs.keys() == ours.keys()
    assert {"0.5.13", "0.5.22"} <= set(versions.available())


def test_every_release_with_pins_is_one_that_the_payload_serves_and_the_other_way_round():
    text = (venv.HERE.parents[1] / "payload" / "sglang_ddtree" / "versions.py").read_text()
    served = next(line for line in text.splitlines() if line.startswith("TESTED_SGLANG_VERSIONS"))
    own = pins(venv.REQUIREMENTS.read_text())["sglang"]
    assert sorted(ast.literal_eval(served.split("=")[1].strip())) == sorted([own, *versions.available()])


def test_a_release_without_pins_is_refused_with_those_that_have_some():
    with pytest.raises(
        SandboxError, match=r"no pins for SGLang 0\.4\.0; there are some for 0\.5\.13, 0\.5\.22"
    ):
        versions.requirements_text("0.4.0")


def test_the_command_says_how_it_is_used(capsys):
    assert versions.main(["folder"]) == 2
    assert "usage: python -m ddtree_deploy.sandbox.versions FOLDER VERSION..." in capsys.readouterr().err
