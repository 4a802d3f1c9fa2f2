"""playbooks/*.yaml -> Playbook: ordered steps, each with the options of its kind.

The order is checked here, so that no playbook can change a host before it is locked and backed up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.playbook_schema import (
    FORBIDDEN,
    GOLDEN,
    KINDS,
    MIN_ROUNDS,
    PROMPTS,
    REQUIRED,
    Acceptance,
    Baseline,
    Bench,
    Benchmark,
    Run,
    StepModel,
    Tokens,
)
from ddtree_deploy.inputs.references import baselines, golden
from ddtree_deploy.inputs.yaml.document import Document, read_text, suggest
from ddtree_deploy.inputs.yaml.document import load as load_yaml
from ddtree_deploy.inputs.yaml.models import Model, fit
from ddtree_deploy.inputs.yaml.nodes import Loc, kind_of
from ddtree_deploy.onhost.judge import expected
from ddtree_deploy.onhost.wire.kinds import TABLE

_ORDER = [kind for kind in KINDS if kind != "run"]


class PlaybookModel(Model):
    schema_: Literal[1] = Field(alias="schema")
    name: str
    action: Literal["rollout", "rollback", "verify"]
    on_controller_loss: Literal["finish", "undo"] = "finish"
    on_inconclusive: Literal["rollback", "hold"] = "rollback"
    steps: list[Any]


@dataclass(frozen=True)
class Step:
    """One step. `options` are those of StepSpec; `timeout_s` is None where the service's limits decide."""

    name: str
    kind: str
    timeout_s: float | None
    options: dict[str, Any]
    line: int | None = None


@dataclass(frozen=True)
class Playbook:
    """A checked playbook. `attachments`: archive path -> content of the files its steps need."""

    file: Path
    name: str
    action: str
    steps: tuple[Step, ...]
    on_controller_loss: str = "finish"
    on_inconclusive: str = "rollback"
    attachments: dict[str, bytes] = field(default_factory=dict)
    action_line: int | None = None

    def step(self, kind: str) -> Step | None:
        """The step of this kind, or None."""
        return next((step for step in self.steps if step.kind == kind), None)


def load(path: Path | str) -> Playbook:
    """Read a playbook. Raises InputError for the first thing wrong in it."""
    doc = load_yaml(path, "playbook")
    top = fit(doc, PlaybookModel)
    if not top.steps:
        raise doc.error(("steps",), "no steps are listed")
    steps: list[Step] = []
    attachments: dict[str, bytes] = {}
    for i in range(len(top.steps)):
        step, needed = _step(doc, i)
        steps.append(step)
        attachments.update(needed)
    _check_order(doc, top.action, steps)
    return Playbook(
        file=doc.file,
        steps=tuple(steps),
        **{key: getattr(top, key) for key in ("name", "action", "on_controller_loss", "on_inconclusive")},
        attachments=attachments,
        action_line=doc.line(("action",)),
    )


def _step(doc: Document, i: int) -> tuple[Step, dict[str, bytes]]:
    """Step i: either a word, or a mapping of one word to its options."""
    item, loc = doc.data["steps"][i], ("steps", i)
    if isinstance(item, dict):
        if len(item) != 1:
            raise doc.error(loc, f"a step is one word and its options, got the keys {', '.join(item)}")
        (kind,) = item
        options = item[kind]
    elif isinstance(item, str):
        kind, options = item, None
    else:
        raise doc.error(loc, f"expected the name of a step, got {kind_of(item)}")
    if kind not in KINDS:
        raise doc.error(loc, f"unknown step {kind!r}{suggest(kind, KINDS)}")
    at = (*loc, kind) if isinstance(item, dict) else loc
    if options is not None and not isinstance(options, dict):
        raise doc.error(at, f"expected the options of {kind} as a mapping, got {kind_of(options)}")
    model = fit(doc, KINDS[kind], at, options or {})
    attachments, more = _files(doc, at, model)
    timeout = model.timeout if model.timeout is not None else TABLE[kind].timeout_s or None
    name = model.name if isinstance(model, Run) else kind
    return Step(name, kind, timeout, {**model.wire(), **more}, doc.line(at)), attachments


def _files(doc: Document, at: Loc, model: StepModel) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files that a step needs on the host, and what of them belongs into its options."""
    if isinstance(model, Baseline):
        return {PROMPTS: _prompts(doc, at, model.prompts, model.tokens, model.bench)}, {}
    if isinstance(model, Benchmark):
        return ({PROMPTS: _prompts(doc, at, model.prompts, 0, model.bench)} if model.prompts else {}), {}
    if isinstance(model, Tokens) and model.golden:
        path = doc.file.parent / Path(model.golden).expanduser()
        return {GOLDEN: golden.read(path)}, {}
    if isinstance(model, Acceptance) and model.against:
        table = baselines.load(doc.file.parent / Path(model.against).expanduser())
        names = sorted({e.dataset for e in table.entries})
        if not any(expected.key(n) == expected.key(model.dataset or "") for n in names):
            hint = suggest(model.dataset or "", names) or f"; it has {', '.join(names)}"
            raise doc.error((*at, "dataset"), f"the baseline file has no {model.dataset!r}{hint}")
        return {}, {"against": table.model_dump()}
    return {}, {}


def _prompts(doc: Document, at: Loc, name: str, tokens: int, bench: Bench | None) -> bytes:
    """The prompts file, checked line by line: SGLang drops, silently, lines that do not fit its format."""
    path = doc.file.parent / Path(name).expanduser()
    try:
        text = read_text(path, "prompts file")
    except InputError as exc:
        if exc.line is not None:  # a place in the prompts file itself
            raise
        raise doc.error((*at, "prompts"), f"{path}: {exc.message}") from None
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise InputError(f"not JSON: {exc}", file=path, line=number) from None
        turns = row.get("conversations") if isinstance(row, dict) else None
        if not isinstance(turns, list) or len(turns) < 2:
            raise InputError(
                "expected {conversations: [prompt, answer]}, at least two turns", file=path, line=number
            )
        for which, turn in (("first", turns[0]), ("second", turns[1])):
            text_of = turn.get("content", turn.get("value")) if isinstance(turn, dict) else None
            if not isinstance(text_of, str) or not text_of.strip():
                raise InputError(
                    f"the {which} turn has no text under content or value", file=path, line=number
                )
        count += 1
    if count < tokens:
        raise doc.error((*at, "tokens"), f"{tokens} prompts wanted, {path} has {count}")
    if bench and count < bench.num_prompts:
        wanted = bench.num_prompts
        raise doc.error((*at, "bench", "num_prompts"), f"{wanted} prompts wanted, {path} has {count}")
    return text.encode()


def _check_order(doc: Document, action: str, steps: list[Step]) -> None:
    """Which steps there are, then in which order they come."""
    by_name: dict[str, Step] = {}
    for step in steps:
        if step.name in by_name:
            first = by_name[step.name].line
            raise _error(doc, step, f"{step.name!r} is listed twice, first on line {first}")
        by_name[step.name] = step
        kinds, why = FORBIDDEN[action]
        if step.kind in kinds:
            raise _error(doc, step, f"{step.kind!r} has no place in {why}")
    for kind in REQUIRED[action]:
        if kind not in by_name:
            needed = ", ".join(REQUIRED[action])
            raise doc.error(("steps",), f"the step {kind!r} is missing; a {action} needs {needed}")
    for step in steps if action != "verify" else ():
        need = TABLE[step.kind].needs
        if need and need not in by_name:
            raise _error(doc, step, f"{step.kind!r} needs the step {need!r}")
    if "benchmark" in by_name:
        _check_benchmark(doc, by_name["benchmark"], by_name.get("baseline"))
    last: Step | None = None
    for step in (s for s in steps if s.kind != "run"):
        if last is not None and _ORDER.index(step.kind) < _ORDER.index(last.kind):
            raise _error(doc, step, f"{step.kind!r} must come before {last.kind!r} (line {last.line})")
        last = step
    for i, step in enumerate(steps):
        before = {s.kind for s in steps[:i]}
        if step.kind == "run" and ("lock" not in before or "unlock" in before):
            raise _error(doc, step, f"the run step {step.name!r} must stand between lock and unlock")


def _check_benchmark(doc: Document, benchmark: Step, baseline: Step | None) -> None:
    """The rounds before and after are the same ones, and enough of them to be judged."""
    own = benchmark.options.get("bench")
    if baseline is None:
        if own is None:
            raise _error(
                doc, benchmark, "without a baseline `benchmark` needs `prompts` and `bench` of its own"
            )
        return
    if own is not None:
        raise _error(doc, benchmark, "the rounds are those of the baseline: write `bench` there")
    bench = baseline.options["bench"]
    if bench is None:
        raise _error(doc, benchmark, "'benchmark' compares with a baseline that has no bench (bench: null)")
    if benchmark.options["min_ratio"] is not None and bench["rounds"] < MIN_ROUNDS:
        text = (
            f"{bench['rounds']} rounds cannot be judged, {MIN_ROUNDS} can; or min_ratio: null, to report only"
        )
        raise _error(doc, baseline, text)


def _error(doc: Document, step: Step, message: str) -> InputError:
    return InputError(message, file=doc.file, line=step.line, field=step.name)


def expect_action(playbook: Playbook, action: str) -> None:
    """Raise InputError for a playbook of another action."""
    if playbook.action != action:
        raise InputError(
            f"this is a playbook for a {playbook.action}, a {action} was asked for",
            file=playbook.file,
            line=playbook.action_line,
            field="action",
        )
