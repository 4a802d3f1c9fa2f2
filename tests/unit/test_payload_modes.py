"""What is executable in the payload is so on the host, or it is said why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import payload
from ddtree_deploy.inputs.payload_files import Reader
from tests.unit.planning import PAYLOAD, sha, write
from tests.unit.test_plan import LATER, Kit


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def modes(kit: Kit) -> dict[str, int]:
    return {t.ref: t.mode for t in kit.rollout().plan.targets}


@pytest.mark.parametrize(
    ("mode", "installed"),
    [(0o755, 0o755), (0o700, 0o755), (0o775, 0o755), (0o644, 0o644), (0o600, 0o644), (0o654, 0o644)],
)
def test_case_42_a_file_is_as_executable_as_in_the_payload(kit: Kit, mode: int, installed: int) -> None:
    (kit.folder / "payload/sglang_ddtree/plugin.py").chmod(mode)
    made = modes(kit)
    assert made["site:sglang_ddtree/plugin.py"] == installed
    assert made["site:sglang_ddtree/__init__.py"] == 0o644


def test_case_42_a_bit_that_alone_has_changed_is_rolled_out(kit: Kit) -> None:
    kit.apply(kit.rollout())
    (kit.folder / "payload/sglang_ddtree/plugin.py").chmod(0o755)
    (target,) = kit.rollout(LATER).plan.targets
    assert (target.ref, target.mode) == ("site:sglang_ddtree/plugin.py", 0o755)


def test_case_42_what_replaces_a_file_of_upstream_gets_its_mode_or_is_refused(kit: Kit) -> None:
    begin, end = PAYLOAD.index("        patch:"), PAYLOAD.index("        base:")
    text = PAYLOAD[:begin] + "        file: whole.py\n" + PAYLOAD[end:]
    text = "".join(line for line in text.splitlines(True) if "result:" not in line)
    write(kit.folder / "payload", {"payload.yaml": text.encode(), "whole.py": b"W = 1\n"})
    assert modes(kit)["sglang:srt/sched.py"] == 0o644
    (kit.folder / "payload/whole.py").chmod(0o755)
    error = kit.refused(kit.rollout)
    assert error.exit_code == 2 and error.render() == (
        "ct129: plan: whole.py is executable, and sglang:srt/sched.py, which it replaces, is not: what "
        "replaces a file of SGLang's gets its mode; nothing was touched; next: chmod -x "
        "whole.py, in the payload"
    )


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_case_42_no_payload_installs_a_setuid_file(kit: Kit, mode: int) -> None:
    (kit.folder / "payload/sglang_ddtree/plugin.py").chmod(mode)
    with pytest.raises(InputError, match="setuid or setgid"):
        payload.load(kit.folder / "payload")


def test_a_single_file_has_its_bit_too(tmp_path: Path) -> None:
    write(tmp_path, {"tool": b"#!/bin/sh\n"})
    (tmp_path / "tool").chmod(0o755)
    ((data, executable),) = Reader(tmp_path).tree("tool").values()
    assert sha(data) == sha(b"#!/bin/sh\n") and executable
