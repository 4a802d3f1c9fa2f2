"""Case 27: progress, and the reason of a failure, from a real journal: its last lines."""

from __future__ import annotations

import pytest

from tests.lab.beside import UNITS, Make
from tests.lab.gated import Gated

pytestmark = pytest.mark.lab
DROP_IN = "sglang.service.d/10-prepare.conf"
# A line a second, for longer than a start may be without progress.
SLOW = "ExecStartPre=/bin/sh -c 'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do echo line $i; sleep 1; done'"
# Beside our launch only: many lines, then the reason.
SAYS_WHY = (
    f"ExecStartPre=/bin/sh -c 'grep -qs DDTREE {UNITS}/sglang.service.d/zzzz-ddtree-deploy.conf "
    f"{UNITS}/lab-llm.service.d/zzzz-ddtree-deploy.conf || exit 0; "
    'i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo "line $i"; done; '
    'echo "the reason: no such model"; exit 7\''
).replace("$", "$$")  # fmt: skip
NAMESPACE = "\nLogNamespace=lab"


@pytest.mark.parametrize("more", ["", NAMESPACE], ids=["plain", "a-namespace-of-its-own"])
def test_case_27_a_line_a_second_in_the_journal_is_progress(
    deployment: Gated, beside: Make, more: str
) -> None:
    beside({DROP_IN: f"[Service]\n{SLOW}{more}\n"}, [])
    deployment.settings(start={"stalled_after": "6s", "limit": "60s"})
    deployment.host.mood(when={"DDTREE": {"fail_every": 2}})
    deployment.rollout().expect(
        1, "health"
    )  # both starts took their 14 s: the new one's, and that of the undo
    assert deployment.algorithm() == "DFLASH"


@pytest.mark.parametrize("alias", ["", "lab-llm.service"])
@pytest.mark.parametrize("more", ["", NAMESPACE], ids=["plain", "a-namespace-of-its-own"])
def test_case_27_the_reason_of_a_failure_is_among_the_last_lines(
    deployment: Gated, beside: Make, alias: str, more: str
) -> None:
    beside({DROP_IN: f"[Service]\n{SAYS_WHY}{more}\n"}, [])
    link = deployment.host.path(f"{UNITS}/lab-llm.service")
    if alias:
        link.symlink_to("sglang.service")
        deployment.host.run("systemctl daemon-reload")
        deployment.before = deployment.look()
        deployment.settings(unit=alias)
    try:
        done = deployment.rollout().expect(1, "start")
        assert "the reason: no such model" in done.outcome["reason"], done
        deployment.assert_as_before()
    finally:
        if alias:
            link.unlink()
            deployment.host.run("systemctl daemon-reload")
            deployment.before = deployment.look()
