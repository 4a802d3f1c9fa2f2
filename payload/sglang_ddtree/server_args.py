"""The DDTREE flags: command line, environment, defaults, validation.

``ServerArgs`` is a sealed struct, so the flags live beside its fields: as given in the record's
bookkeeping (which travels to child processes with it), and readable as
``server_args.speculative_ddtree_*`` through descriptors.  ``Engine()`` has no command line; there the
environment variables below take the place of the flags.
"""

from __future__ import annotations

import argparse
import os
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sglang_ddtree import loaded
from sglang_ddtree.budget_schedule import OPTION as SCHEDULE_OPTION
from sglang_ddtree.budget_schedule import BudgetSchedule, parse_budget_schedule

ALGORITHM = "DDTREE"
DEFAULT_BUDGET = 32
DEFAULT_TOPK_CAP = 32
_GIVEN_FLAGS = "_speculative_ddtree_given"  # bookkeeping name on a ServerArgs record
# The same for a record under construction: 0.5.13's dataclass is resolved before it is returned.
_being_parsed: ContextVar[dict[str, Any] | None] = ContextVar("ddtree_flags_being_parsed", default=None)


@dataclass(frozen=True)
class DDTreeConfig:
    """The flags in effect on a DDTREE server.

    Attributes:
        budget: draft nodes per tree (the largest, with a schedule); verify runs ``budget + 1`` tokens per
            request.
        budget_schedule: the budget by batch size, None for one budget.
        topk_cap: candidates kept per draft position.
        allow_hybrid_unsafe: accept Mamba / GDN targets, whose state is kept per tree node.
        debug_metrics: log a summary of every verified tree as a JSON line.
    """

    budget: int
    budget_schedule: BudgetSchedule | None
    topk_cap: int
    allow_hybrid_unsafe: bool
    debug_metrics: bool


@dataclass(frozen=True)
class Flag:
    """One flag. ``name`` is the attribute on ServerArgs; option and variable follow from it."""

    name: str
    type: type  # int, str, or bool for a switch
    help: str

    @property
    def is_switch(self) -> bool:
        return self.type is bool

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "SGLANG_" + self.name.upper()

    def from_environment(self) -> Any:
        """The variable's value, or None; ValueError if it does not parse."""
        text = os.environ.get(self.variable, "").strip()
        if not text:
            return None
        if self.type is str:
            return text
        if self.type is int:
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"{self.variable} must be an integer, got {text!r}") from None
        if text.lower() not in ("0", "1", "false", "true"):
            raise ValueError(f"{self.variable} must be 0 or 1, got {text!r}")
        return text.lower() in ("1", "true")


FLAGS = (
    Flag(
        "speculative_ddtree_budget",
        int,
        f"DDTREE only. Draft nodes per tree, the root not counted (default {DEFAULT_BUDGET}). Verify runs "
        "budget + 1 tokens per request.",
    ),
    Flag(
        "speculative_ddtree_budget_schedule",
        str,
        "DDTREE only. Budget by the number of running requests, as BATCH_SIZE:BUDGET,...: "
        '"1:64,4:32,16:0" means 64 from one request on, 32 from four, and from sixteen a chain (default: one '
        "budget).",
    ),
    Flag(
        "speculative_ddtree_topk_cap",
        int,
        f"DDTREE only. Candidate tokens kept per draft position (default {DEFAULT_TOPK_CAP}).",
    ),
    Flag(
        "speculative_ddtree_allow_hybrid_unsafe",
        bool,
        "DDTREE only. Accept hybrid (Mamba, GDN) targets, which keep one recurrent state per tree node and "
        "request.",
    ),
    Flag(
        "speculative_ddtree_debug_metrics",
        bool,
        "DDTREE only. Log a summary of every verified tree as a JSON line.",
    ),
)


def add_cli_args(_result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER hook on ``ServerArgs.add_cli_args``."""
    for flag in FLAGS:
        if flag.is_switch:
            parser.add_argument(flag.option, action="store_true", default=None, help=flag.help)
        else:
            parser.add_argument(flag.option, type=flag.type, default=None, help=flag.help)


def from_cli_args(original: Any, cls: type, args: argparse.Namespace) -> Any:
    """AROUND hook on ``ServerArgs.from_cli_args``: keep the flags given, and refuse what cannot work."""
    flags = {flag.name: getattr(args, flag.name, None) for flag in FLAGS}
    given = {name: value for name, value in flags.items() if value is not None}
    token = _being_parsed.set(given)
    try:
        record = original(cls, args)
    finally:
        _being_parsed.reset(token)
    setattr(record, _GIVEN_FLAGS, given)
    validate_flags(record)
    return record


def resolved_dict(result: dict[str, Any], record: Any) -> dict[str, Any]:
    """AFTER hook on ``ServerArgs.resolved_dict``: ``/server_info`` shows the values in effect.

    It also shows which code runs: that of the HTTP server, and in ``internal_states`` that of each scheduler.
    """
    result[loaded.FIELD] = loaded.modules()
    if is_ddtree(record):
        result.update({flag.name: getattr(record, flag.name) for flag in FLAGS})
    return result


def scheduler_init_info(result: dict[str, Any], scheduler: Any) -> dict[str, Any]:
    """AFTER hook on 0.5.13's ``Scheduler.get_init_info``, which goes into ``/server_info`` there."""
    return resolved_dict(result, scheduler.server_args)


class FlagAttribute:
    """``ServerArgs.<flag>``: None on the class, the value in effect on an instance.

    On a server with another algorithm nothing is in effect, and every flag reads None.
    """

    def __init__(self, flag: Flag):
        self.flag = flag
        self.field = flag.name.removeprefix("speculative_ddtree_")

    def __get__(self, record: Any, owner: type | None = None) -> Any:
        if record is None or not is_ddtree(record):
            return None
        return getattr(ddtree_config(record), self.field)

    def __set__(self, record: Any, value: Any) -> None:
        raise AttributeError(f"{self.flag.name} is read-only; use {self.flag.option} or {self.flag.variable}")


def install_flag_attributes(server_args_class: type) -> None:
    for flag in FLAGS:
        setattr(server_args_class, flag.name, FlagAttribute(flag))


def is_ddtree(view: Any) -> bool:
    """Whether ``view`` (a record or any of SGLang's views of one) chooses DDTREE."""
    return (view.speculative_algorithm or "").upper() == ALGORITHM


def ddtree_config(view: Any) -> DDTreeConfig:
    """The flags in effect: command line, else environment, else default.

    ``--speculative-num-draft-tokens N`` without a budget means a budget of ``N - 1``.

    Raises:
        ValueError: a flag is out of range or contradicts another option.
    """
    given = {flag.name: _given(view, flag) for flag in FLAGS}
    budget, cap = given["speculative_ddtree_budget"], given["speculative_ddtree_topk_cap"]
    num_draft_tokens = view.speculative_num_draft_tokens
    schedule = None
    if (text := given["speculative_ddtree_budget_schedule"]) is not None:
        schedule = parse_budget_schedule(text)
        if budget is not None and budget != schedule.largest_budget:
            raise ValueError(
                f"--speculative-ddtree-budget {budget} is not the largest budget of {SCHEDULE_OPTION}, "
                f"{schedule.largest_budget}; give only one of them"
            )
        budget = schedule.largest_budget
    if budget is None:
        if num_draft_tokens is not None and num_draft_tokens < 2:
            raise ValueError(
                f"DDTREE needs --speculative-num-draft-tokens of at least 2 (the root and one draft node), "
                f"got {num_draft_tokens}"
            )
        budget = DEFAULT_BUDGET if num_draft_tokens is None else num_draft_tokens - 1
    if budget < 1:
        raise ValueError(f"--speculative-ddtree-budget must be at least 1, got {budget}")
    if num_draft_tokens is not None and num_draft_tokens != budget + 1:
        raise ValueError(
            f"--speculative-ddtree-budget {budget} means {budget + 1} draft tokens with the root, but "
            f"--speculative-num-draft-tokens is {num_draft_tokens}; give only one of them"
        )
    if cap is not None and cap < 1:
        raise ValueError(f"--speculative-ddtree-topk-cap must be at least 1, got {cap}")
    return DDTreeConfig(
        budget=budget,
        budget_schedule=schedule,
        topk_cap=DEFAULT_TOPK_CAP if cap is None else cap,
        allow_hybrid_unsafe=bool(given["speculative_ddtree_allow_hybrid_unsafe"]),
        debug_metrics=bool(given["speculative_ddtree_debug_metrics"]),
    )


def validate_flags(view: Any) -> None:
    """What can be judged from the arguments alone, without a model or a device.

    Raises:
        ValueError: with one line that names the option.
    """
    if not is_ddtree(view):
        given = sorted(_given_flags(view))
        if given:
            options = ", ".join(flag.option for flag in FLAGS if flag.name in given)
            raise ValueError(f"{options} needs --speculative-algorithm {ALGORITHM}")
        return
    ddtree_config(view)
    if view.speculative_draft_model_path is None:
        raise ValueError("DDTREE needs --speculative-draft-model-path (a DFlash draft model)")


def _given_flags(view: Any) -> dict[str, Any]:
    given = getattr(view, _GIVEN_FLAGS, None)
    return (_being_parsed.get() if given is None else given) or {}


def _given(view: Any, flag: Flag) -> Any:
    value = _given_flags(view).get(flag.name)
    return flag.from_environment() if value is None else value
