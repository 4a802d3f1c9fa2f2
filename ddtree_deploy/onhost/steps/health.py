"""N of M prompts answered with tokens within a deadline, as a stream, at every endpoint of the host; and the
server itself says that it is the release's (`service/release.py`).

/health is not asked: it may say 200 while generation hangs.
"""

from __future__ import annotations

import secrets
import time

from ..context import Context, StepFailed
from ..judge import verdict
from ..service import release, serving
from ..service.base import ServiceControl
from ..service.ready import check_listener, with_log
from ..service.sglang_api import Endpoint, HttpError, generate_streamed
from ..state import releases


def do(ctx: Context) -> str:
    control = serving.require_serving(ctx)
    until = time.monotonic() + float(ctx.option("deadline_s", 120))
    check_listener(control)
    key = control.endpoint.api_key
    endpoints = [control.endpoint, *(Endpoint(url, key) for url in serving.service_of(ctx).also_endpoints)]
    said, told = [], []
    for endpoint in endpoints:
        asked = _Asked(ctx, endpoint, until)
        asked.all()
        told.append({"endpoint": endpoint.url, **asked.figures()})
        judged = verdict.health(asked.good, asked.need, asked.requests, asked.faults)
        where = f"{endpoint.url}: " if len(endpoints) > 1 else ""
        if judged.verdict != "pass":
            ctx.result(**told[0], endpoints=told)
            raise StepFailed(with_log(control, where + judged.reason), verdict=judged.verdict)
        said.append(where + judged.reason)
    said.append(_shows_release(ctx, control))
    ctx.result(**told[0], endpoints=told)
    return "; ".join(filter(None, said))


def _shows_release(ctx: Context, control: ServiceControl) -> str:
    """Last: a server that hangs has said so by now, and here is asked what only one that works can tell."""
    wanted = releases.to_be(ctx.plan, ctx.run_dir)
    recorded = ctx.plan.action == "verify"  # a run that starts the service has nothing recorded of it yet
    seen = serving.call(ctx, lambda: release.look(control, ctx.state_dir, wanted, recorded=recorded))
    if seen.wrong:
        raise StepFailed(f"another release serves: {'; '.join(seen.wrong)}")
    return seen.in_words()


class _Asked:
    """What one endpoint answered."""

    def __init__(self, ctx: Context, endpoint: Endpoint, until: float) -> None:
        self.ctx, self.endpoint, self.until = ctx, endpoint, until
        self.requests, self.need = int(ctx.option("requests", 3)), int(ctx.option("need", 3))
        self.max_new_tokens = int(ctx.option("max_new_tokens", 8))
        self.good, self.faults = 0, list[str]()
        self.seconds, self.first_s = list[float](), list[float]()

    def all(self) -> None:
        """Until enough is known."""
        for number in range(1, self.requests + 1):
            left = self.until - time.monotonic()
            if left <= 0:
                self.faults.append(f"prompt {number} was not asked: the deadline is over")
                return
            fault = self.one(number, left)
            if fault:
                self.faults.append(f"prompt {number}: {fault}")
                self.ctx.progress(self.faults[-1])
            if len(self.faults) > self.requests - self.need:
                return

    def one(self, number: int, left: float) -> str:
        """What is wrong with the answer to one prompt, unique so that no cache can answer for the model."""
        prompt = f"ddtree-deploy {self.ctx.plan.run} {number} {secrets.token_hex(8)}: count from one to ten."
        asked = self.max_new_tokens
        try:
            made = serving.call(
                self.ctx, lambda: generate_streamed(self.endpoint, prompt, asked, seconds=left)
            )
        except HttpError as e:
            return str(e)
        fault = verdict.answer(made.tokens, made.completion_tokens, made.finish, asked, exact=False)
        if not fault:
            self.good += 1
            self.seconds.append(round(made.seconds, 3))
            self.first_s.append(round(made.first_s, 3))
            text = f"prompt {number} of {self.requests}: {len(made.tokens)} tokens in {made.chunks} parts"
            self.ctx.progress(text, done=number, total=self.requests)
        return fault

    def figures(self) -> dict[str, object]:
        return {key: getattr(self, key) for key in ("good", "requests", "seconds", "first_s", "faults")}
