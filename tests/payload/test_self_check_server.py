"""A worker whose verify path is broken at its start refuses to serve, and says the figures."""

import json
import re

import pytest
from serving import DDTREE
from sglang_venv import START_DEADLINE_S, Server

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize("broken", ["mask", "positions"])
def test_a_worker_whose_verify_is_broken_refuses_to_start(payload, controls, tmp_path, broken):
    plugin, _ = controls
    file, log = tmp_path / "controls.json", tmp_path / "broken.log"
    file.write_text(json.dumps({"oracle": None, "break": broken}))
    server = Server("broken", log, [payload, plugin], DDTREE, DDTREE_CONTROLS=str(file))
    try:
        assert server.process.wait(START_DEADLINE_S) != 0
    finally:
        server.stop()
    text = log.read_text(errors="replace")
    assert "fired up" not in text
    found = re.search(
        r"SelfCheckError: DDTREE's self-check failed: a node's logits differ from those of its path alone by "
        r"([0-9.]+) of their size \(request \d, node \d+ at depth \d+\); 0\.01 is allowed.*eager.*nodes",
        text,
    )
    assert found, server.log_tail()
    assert float(found[1]) > 0.1
