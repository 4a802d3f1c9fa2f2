"""How a run on one host ended, and what it means."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ddtree_deploy.errors import DeployError, gravest
from ddtree_deploy.onhost.wire.protocol import STATE_UNTOUCHED
from ddtree_deploy.running import next_command

MEANING = {
    0: "passed",
    1: "a gate failed; the host is as it was before",
    2: "bad input; nothing was touched",
    3: "the rollback is incomplete; the host needs a person",
    4: "unreachable, or refused by SSH",
    5: "locked by another run",
    6: "drift, or no variant for this SGLang; nothing was touched",
    7: "inconclusive: a gate could not decide",
    8: "contact lost; the host goes on by itself",
    130: "interrupted",
}


@dataclass
class Outcome:
    """One host's outcome. `results` maps step name to the data of its result event."""

    host: str
    action: str  # rollout | rollback | attach
    exit_code: int
    run: str = ""
    verdict: str = ""  # pass | fail | inconclusive | interrupted | error | skipped: nothing was done
    state: str = ""  # what the host is in now
    step: str = ""  # where it ended, if not by a pass
    reason: str = ""
    next_command: str = ""
    seconds: float = 0.0
    down_s: float | None = None  # without service; None: it was not stopped, or did not come back
    execs: int = 0
    sent: int = 0  # bytes of the execs' stdin
    received: int = 0  # bytes of their stdout and stderr
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: str = ""  # the whole error as one line, where the run ended without the host's own verdict

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the exit code's meaning."""
        fields = asdict(self)
        fields["next_command"] = next_command.typed(self.next_command)
        return {**fields, "meaning": meaning(self.exit_code)}

    @classmethod
    def nothing(
        cls, host: str, action: str, reason: str, *, missed: bool = False, following: str = ""
    ) -> Outcome:
        """The outcome of a host on which nothing was done: a pass if it is as it was asked for already."""
        code, verdict = (2, "skipped") if missed else (0, "pass")
        following = following or f"ddtree-deploy {'releases' if missed else 'status'} {host}"
        return cls(host, action, code, "", verdict, STATE_UNTOUCHED, reason=reason, next_command=following)

    @classmethod
    def of_error(cls, error: DeployError, host: str, action: str) -> Outcome:
        """The outcome of a host on which nothing was started, or from which contact was lost."""
        verdict = {7: "inconclusive", 130: "interrupted"}.get(error.exit_code, "fail")
        return cls(
            host=host,
            action=action,
            exit_code=error.exit_code,
            verdict=verdict,
            state=error.state,
            step=error.stage,
            reason=error.message,
            next_command=error.next_command,
            error=error.render(),
        )


def meaning(exit_code: int) -> str:
    """What an exit code says, in a few words."""
    return MEANING.get(exit_code, "unknown exit code")


def exit_code_of(outcomes: list[Outcome]) -> int:
    """Of several hosts: the gravest. One on which nothing was done counts where nothing was done anywhere."""
    done = [o for o in outcomes if o.verdict != "skipped"]
    return gravest([o.exit_code for o in done or outcomes])


def figures(outcome: Outcome) -> list[tuple[str, str, str]]:
    """Rows (name, before, after) of what the gates measured; empty where nothing was measured."""
    baseline, benchmark = outcome.results.get("baseline", {}), outcome.results.get("benchmark", {})
    asked = [outcome.results.get(step, {}).get("sample") for step in ("benchmark", "tokens", "acceptance")]
    before = {**_dict(baseline.get("sample")), **_dict(_dict(baseline.get("bench")).get("figures"))}
    after = {
        **next((_dict(s) for s in asked if s), {}),
        **_dict(_dict(benchmark.get("after")).get("figures")),
    }
    rows = []
    for key, name, digits, _ in FIGURES:
        old, new = before.get(key), after.get(key)
        if old is not None or new is not None:
            rows.append((name, number(old, digits), number(new, digits)))
    return rows


# Keys of the results of the steps `baseline`, `tokens` (or `acceptance`) and `benchmark`; times in ms. Their
# names, the digits that are shown, whether more is better.
FIGURES = (
    ("steps_per_token", "verify steps per token", 4, False),
    ("accept_length", "accept length", 3, True),
    ("output_tokens_per_s", "output tokens/s", 1, True),
    ("ttft_ms", "TTFT, ms", 1, False),
    ("tpot_ms", "TPOT, ms", 2, False),
    ("itl_ms", "ITL, ms", 2, False),
)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def number(value: Any, digits: int) -> str:
    """A figure with so many digits; `-` where it was not measured."""
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"
