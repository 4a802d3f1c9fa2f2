"""A host's outcome as the record keeps it and as the summary shows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddtree_deploy.running import next_command
from ddtree_deploy.running.outcome import Outcome, figures


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    next_command.remember([])


def test_the_next_command_in_the_record_has_the_flags_that_were_given() -> None:
    next_command.remember(["rollout", "a", "--hosts", "lab.yaml"])
    kept = Outcome("a", "rollout", 1, next_command="ddtree-deploy recover a").to_dict()
    assert kept["next_command"] == "ddtree-deploy recover a --hosts lab.yaml"
    assert kept["meaning"] == "a gate failed; the host is as it was before"


def test_a_figure_is_shown_where_either_side_has_it() -> None:
    def shown(before: dict[str, float], after: dict[str, float]) -> list[tuple[str, str, str]]:
        results = {"baseline": {"sample": before}, "tokens": {"sample": after}}
        return figures(Outcome("a", "rollout", 0, results=results))

    assert shown({}, {}) == []
    assert shown({"accept_length": 5.0}, {}) == [("accept length", "5.000", "-")]
    assert shown({}, {"accept_length": 5.0}) == [("accept length", "-", "5.000")]
    assert shown({"accept_length": 5.0}, {"accept_length": 6.0}) == [("accept length", "5.000", "6.000")]
