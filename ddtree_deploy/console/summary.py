"""The last words of a run: verdict, figures before and after, what the exit code means, what to type next."""

from __future__ import annotations

from ddtree_deploy.running import next_command
from ddtree_deploy.running.outcome import Outcome, exit_code_of, figures, meaning
from ddtree_deploy.text import safe, size, span


def host_lines(outcome: Outcome) -> list[str]:
    """The summary of one host, as plain lines; none where one error line says it all. Pure."""
    if outcome.error and not outcome.run:
        return []
    head = f"{outcome.host}: {outcome.action} {_word(outcome)}"
    if outcome.step and outcome.exit_code:
        head += f" at {safe(outcome.step)}"
    down = "" if outcome.down_s is None else f", down {span(outcome.down_s)}"
    lines = [f"{head} ({span(outcome.seconds)}{down})"]
    if outcome.reason:
        lines.append(f"  reason  {safe(outcome.reason)}")
    if outcome.state:
        lines.append(f"  host    {safe(outcome.state)}")
    table = figures(outcome)
    if table:
        width = max(len(name) for name, _, _ in table)
        lines.append(f"  {'':{width}}  {'before':>10}  {'after':>10}")
        lines += [f"  {name:{width}}  {before:>10}  {after:>10}" for name, before, after in table]
    if outcome.run:
        lines.append(f"  run     {outcome.run}")
    if outcome.execs:
        lines.append(
            f"  wire    {outcome.execs} execs, {size(outcome.sent)} sent, {size(outcome.received)} received"
        )
    lines.append(f"  exit    {outcome.exit_code}: {meaning(outcome.exit_code)}")
    if outcome.next_command:
        lines.append(f"  next    {safe(next_command.typed(outcome.next_command))}")
    return lines


def fleet_lines(outcomes: list[Outcome], waiting: list[str]) -> list[str]:
    """One line for several hosts; `waiting` are those that were not begun after a failure. Pure."""
    if len(outcomes) + len(waiting) < 2:
        return []
    good = sum(o.exit_code == 0 for o in outcomes)
    code = exit_code_of(outcomes)
    line = f"{good} of {len(outcomes) + len(waiting)} hosts passed"
    if waiting:
        line += f"; not begun after the failure: {', '.join(waiting)}"
    return [f"{line}; exit {code}: {meaning(code)}"]


def _word(outcome: Outcome) -> str:
    if outcome.exit_code == 0:
        return "passed"
    if outcome.verdict == "skipped":
        return "did nothing"
    return {7: "inconclusive", 8: "left to the host", 130: "interrupted"}.get(outcome.exit_code, "failed")
