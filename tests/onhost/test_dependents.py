"""What goes down with a unit, from what systemctl says: a graph as data. Real ones: tests/lab/cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.programs import systemctl
from ddtree_deploy.onhost.service import dependents
from ddtree_deploy.onhost.service.base import Record, UnitState
from ddtree_deploy.onhost.service.systemd import closure
from ddtree_deploy.onhost.wire.facts import ServiceFacts

pytestmark = pytest.mark.unit
Graph = dict[str, dict[str, str]]
U = "sglang.service"


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Graph], closure.Closure]:
    """The closure of U in a graph; units are up unless it says else. Each call of systemctl is counted."""

    def look(graph: Graph) -> closure.Closure:
        calls: list[list[str]] = []

        def run(*args: str, seconds: float = 0.0) -> str:
            assert args[0] == "show"
            names = list(args[args.index("--") + 1 :])
            calls.append(names)
            assert len(calls) < 10
            blocks = []
            for name in names:
                one = {"Id": name, "ActiveState": "active", **graph.get(name, {})}
                blocks.append("".join(f"{key}={value}\n" for key, value in one.items()))
            return "\n".join(blocks)

        monkeypatch.setattr(systemctl, "run", run)
        return closure.of(U, {"Id": U, "ActiveState": "active", **graph.get(U, {})})

    return look


Of = Callable[[Graph], closure.Closure]
KINDS = ["RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo"]


def test_case_25_a_unit_without_dependents_costs_no_look(of: Of) -> None:
    assert of({U: {"WantedBy": "multi-user.target", "After": "network.target"}}) == closure.Closure()


@pytest.mark.parametrize("kind", KINDS)
def test_case_25_each_kind_is_followed_over_levels_and_through_what_is_up(of: Of, kind: str) -> None:
    graph: Graph = {
        U: {kind: "a.service b.service off.service"},
        "a.service": {"ConsistsOf": "deep.target"},
        "deep.target": {kind: "deeper.service a.service"},
        "off.service": {"ActiveState": "inactive", kind: "behind.service"},
        "b.service": {"ActiveState": "deactivating", kind: "after-b.service"},
    }
    found = of(graph)
    assert set(found.stopped) == {"a.service", "deep.target", "deeper.service", "after-b.service"}
    assert found.starters == [] and found.conflicting == {} and found.refused == ""


def test_case_25_what_starts_it_is_stopped_first_the_farthest_before_all(of: Of) -> None:
    found = of(
        {
            U: {"TriggeredBy": "u.socket off.timer", "UpheldBy": "keeper.service"},
            "off.timer": {"ActiveState": "inactive"},
            "keeper.service": {"UpheldBy": "keepers.service"},
        }
    )
    assert found.starters[0] == "keepers.service"
    assert set(found.starters) == {"keepers.service", "keeper.service", "u.socket"} == set(found.stopped)


def test_case_25_what_starts_a_dependent_would_start_the_service_too(of: Of) -> None:
    found = of(
        {
            U: {"RequiredBy": "front.service"},
            "front.service": {"ActiveState": "inactive", "TriggeredBy": "front.socket"},
        }
    )
    assert found.starters == ["front.socket"] and list(found.stopped) == ["front.socket"]


@pytest.mark.parametrize("upholder", ["multi-user.target", "my.slice"])
def test_case_25_what_cannot_be_stopped_for_a_while_is_refused(of: Of, upholder: str) -> None:
    assert upholder in of({U: {"UpheldBy": upholder}}).refused
    assert of({U: {"UpheldBy": upholder}, upholder: {"ActiveState": "inactive"}}).refused == ""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"Transient": "yes"}, "once stopped it is gone"),
        ({"LoadState": "not-found"}, "its unit file is not-found"),
        ({"LoadState": "masked"}, "its unit file is masked"),
        ({"CanStart": "no"}, "RefuseManualStart="),
    ],
)
def test_case_25_what_could_not_be_started_again_is_refused_while_it_runs(
    of: Of, said: dict[str, str], words: str
) -> None:
    refused = of({U: {"ConsistsOf": "a.service"}, "a.service": said}).refused
    assert words in refused and "a.service" in refused
    down = {"ActiveState": "inactive", **said}
    assert of({U: {"ConsistsOf": "a.service"}, "a.service": down}).refused == ""
    assert of({U: {"UpheldBy": "a.service"}, "a.service": {"CanStop": "no"}}).refused != ""


def test_case_25_what_conflicts_counts_only_while_the_service_is_down(of: Of) -> None:
    graph: Graph = {
        U: {"ActiveState": "inactive", "Conflicts": "shutdown.target x.service", "ConflictedBy": "y.service"},
        "shutdown.target": {"ActiveState": "inactive"},
        "x.service": {"RequiredBy": "over-x.service"},
    }
    assert set(of(graph).conflicting) == {"x.service", "y.service", "over-x.service"}
    assert of(graph).stopped == {}
    graph[U]["ActiveState"] = "active"
    assert of(graph) == closure.Closure()


def test_case_25_a_name_with_a_backslash_is_quoted_in_a_list_and_plain_elsewhere(of: Of) -> None:
    name = "a\\x2db@1.service"
    found = of({U: {"ConsistsOf": '"a\\\\x2db@1.service" c.service'}, name: {"TriggeredBy": "a.timer"}})
    assert set(found.stopped) == {name, "c.service", "a.timer"}


def test_case_25_an_answer_about_another_unit_is_no_answer(of: Of) -> None:
    with pytest.raises(systemctl.SystemctlError, match="tells of other"):
        of({U: {"ConsistsOf": "a.service"}, "a.service": {"Id": "other.service"}})


def test_case_25_a_circle_ends(of: Of) -> None:
    graph = {U: {"ConsistsOf": "a.service"}, "a.service": {"ConsistsOf": f"{U} a.service"}}
    assert list(of(graph).stopped) == ["a.service"]


class Units:
    """A control whose units are up after so many looks; `stuck` ones never."""

    def __init__(self, looks: int = 0, stuck: tuple[str, ...] = ()) -> None:
        self.looks, self.stuck = looks, stuck
        self.started: list[tuple[list[str], bool]] = []

    def start_units(self, names: list[str], *, alone: bool) -> None:
        self.started.append((names, alone))

    def states(self, names: list[str]) -> dict[str, UnitState]:
        self.looks -= 1
        moving = self.looks > 0
        state = UnitState(False, True, "activating") if moving else UnitState(True, False, "active (running)")
        down = UnitState(False, moving, "failed (exit-code)")
        return {name: down if name in self.stuck else state for name in names}


class Run:
    """The part of a Context that waiting needs."""

    def __init__(self) -> None:
        self.pauses = 0

    def pause(self, seconds: float) -> None:
        self.pauses += 1


def require(units: Units, record: Record) -> str:
    return dependents.require(Run(), units, record)  # type: ignore[arg-type]


def record(active: bool = True, **more: Any) -> Record:
    return Record("systemd", active, active, None, **more)


def test_case_25_what_is_up_or_comes_up_passes_and_is_not_started_again() -> None:
    units = Units(looks=3)
    said = require(units, record(dependents={"a.service": "active", "b.timer": "active"}))
    assert said == "up again with it: a.service, b.timer" and units.started == []
    assert require(Units(), record()) == ""


def test_case_25_what_is_down_is_started_once_and_named_then() -> None:
    units = Units(stuck=("a.service",))
    with pytest.raises(StepFailed, match=r"a\.service \(failed \(exit-code\)\)") as failed:
        require(units, record(dependents={"a.service": "active", "b.service": "active"}))
    assert "b.service" not in failed.value.reason
    assert units.started == [(["a.service"], False)]


def test_case_25_one_that_was_about_to_start_is_not_judged() -> None:
    units = Units(stuck=("job.service",))
    assert require(units, record(dependents={"job.service": "activating"})) == ""


def test_case_25_where_the_service_was_down_they_are_started_without_it() -> None:
    units = Units(stuck=("a.service", "x.service"))
    was = record(False, dependents={"a.service": "active"}, conflicting={"x.service": "active"})
    with pytest.raises(StepFailed):
        require(units, was)
    assert units.started == [(["a.service", "x.service"], True)]


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        ("25s", 25.0),
        ("1min 30s", 90.0),
        ("1h 500ms", 3600.5),
        ("1.500s", 1.5),
        ("1month 1us", 2629800.000001),
        ("infinity", float("inf")),
        ("", 0.0),
        ("0", 0.0),
    ],
)
def test_case_33_a_time_span_as_systemctl_prints_it(span: str, seconds: float) -> None:
    assert systemctl.seconds(span) == pytest.approx(seconds)


@pytest.mark.parametrize(("takes", "said"), [(0.0, ""), (6.0, ""), (25.0, "25s"), (-1.0, "infinity")])
def test_case_33_a_limit_shorter_than_the_units_own_is_said(takes: float, said: str) -> None:
    told = ServiceFacts("systemd", "active", stop_takes_s=takes).short_limit(6.0)
    assert said in told and bool(told) == bool(said)


def test_a_look_at_several_units_has_an_answer_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemctl, "run", lambda *args, seconds: "Id=a\nJob=\n\nId=b\nText=x=y\n")
    assert systemctl.show_each(["a", "b"], ["Id"]) == [{"Id": "a", "Job": ""}, {"Id": "b", "Text": "x=y"}]
    with pytest.raises(systemctl.SystemctlError, match="2 answers for 1"):
        systemctl.show_each(["a"], ["Id"])
