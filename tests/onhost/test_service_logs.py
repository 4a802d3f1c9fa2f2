"""Log lines for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.onhost.service import logs

pytestmark = pytest.mark.unit


def test_a_progress_bar_counts_with_its_last_state(tmp_path: Path) -> None:
    log = tmp_path / "l"
    log.write_bytes(b"first\n\rload: 1%\rload: 50%\rload: 99%\n\nlast \xff")
    assert logs.tail(log, 2) == ["load: 99%", "last \ufffd"]
    assert logs.tail(tmp_path / "none", 2) == []


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "l"
    log.write_bytes(b"x" * 1_000_000 + b"\nend\n")
    assert logs.tail(log, 1) == ["end"]


def test_colours_go_and_a_dump_of_arguments_is_cut() -> None:
    assert logs.line("\x1b[1;33mwarning\x1b[0m") == "warning"
    assert len(logs.line("server_args=" + "x" * 10_000)) == 300


def test_every_start_has_a_log_of_its_own_and_old_ones_go(tmp_path: Path) -> None:
    for _ in range(8):
        logs.new(tmp_path / "logs").touch()
    assert len(list((tmp_path / "logs").iterdir())) == 5
