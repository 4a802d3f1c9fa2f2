"""`make gate-proof`: rollouts of payloads that are wrong, each undone by the gate for it. Real SGLang.

Each is a copy of `payload/` with one fault written into its source. None of them is seen by the payload's
own self-check, which proves the verify path and not the steps around it; the smoke check, which sees some, is
left out, so that the serving gates stand alone. After each rollout the sandbox's chain serves as before.

    python -m benchmarks.payload_proof [FAULT ...]

Works on the checkout's sandbox. Exit status 1 unless each failed at its gate and the host is as before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_deploy.onhost import tree
from ddtree_deploy.sandbox import up
from ddtree_deploy.sandbox.demo import Host, without

PROJECT = Path(__file__).parents[1]
WORKER, VERIFY = "sglang_ddtree/ddtree_worker.py", "sglang_ddtree/ddtree_verify.py"
COMMON = ("local", "smoke", "soak")


@dataclass(frozen=True)
class Fault:
    """What is written in whose place, and the gate that must say so. `line` has to be there once."""

    file: str
    line: str
    instead: str
    gate: str
    left_out: tuple[str, ...] = (*COMMON, "benchmark")


GROWN = "            trees = self._grow_trees(topk_ids, topk_logps, shape.budget)\n"
MOVED = "    if not _already_in_front(paths.accept_index, roots):\n"
WALKED = "        choices = choices.view(-1, verify_input.draft_token_num)\n"
STEP = "        bonus_tokens = batch.spec_info.bonus_tokens\n"

FAULTS = {
    "causal mask": Fault(
        WORKER,
        GROWN,
        GROWN
        + "            causal = torch.ones_like(trees.visibility).tril()\n"
        + '            trees = __import__("dataclasses").replace(trees, visibility=causal)\n',
        "tokens",
    ),
    "no KV move": Fault(VERIFY, MOVED, "    if False:\n", "tokens"),
    "takes the draft's word": Fault(
        WORKER,
        WALKED,
        WALKED
        + "        child = verify_input.retrieve_next_token\n"
        + "        drafted = verify_input.draft_token.view_as(choices).gather(1, child.clamp(min=0))\n"
        + "        choices = torch.where(child >= 0, drafted, choices)\n",
        "tokens",
    ),
    "slow": Fault(
        WORKER, STEP, STEP + '        __import__("time").sleep(0.1)\n', "benchmark", left_out=COMMON
    ),
}


@contextmanager
def payload_with(fault: Fault) -> Iterator[Path]:
    """A copy of the payload that has the fault."""
    with tempfile.TemporaryDirectory(prefix="ddtree-payload-proof-") as folder:
        copy = Path(folder) / "payload"
        shutil.copytree(PROJECT / "payload", copy, ignore=shutil.ignore_patterns("__pycache__"))
        source = copy / fault.file
        text = source.read_text()
        if text.count(fault.line) != 1:
            raise RuntimeError(f"{fault.file}: expected one line {fault.line!r}")
        source.write_text(text.replace(fault.line, fault.instead))
        yield copy


def rollout(hosts: Path, payload: Path, left_out: tuple[str, ...]) -> dict[str, Any]:
    """The `outcome` event of a rollout."""
    with without(PROJECT / "playbooks", *left_out) as playbook:
        words = ["rollout", "sandbox", "--hosts", str(hosts), "--yes", "--json"]
        words += ["--payload", str(payload), "--playbook", str(playbook)]
        done = subprocess.run(
            [sys.executable, "-m", "ddtree_deploy.cli", *words],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (outcome,) = [e for e in events if e["e"] == "outcome"]
    return dict(outcome)


def main() -> int:
    chosen = sys.argv[1:] or list(FAULTS)
    sandbox = up(
        folder=PROJECT / ".sandbox", say=lambda text: print(text, file=sys.stderr), fresh_service=True
    )
    host = Host(sandbox.folder, sandbox.endpoint)
    began, before, tokens, good = time.monotonic(), host.snapshot(), host.tokens(), True
    for name in chosen:
        fault = FAULTS[name]
        with payload_with(fault) as payload:
            outcome = rollout(sandbox.hosts_file, payload, fault.left_out)
        same = host.tokens() == tokens and tree.changes(before, host.snapshot()) == []
        holds = same and outcome["exit_code"] == 1 and outcome["step"] == fault.gate
        good = good and holds
        print(
            f"{'ok' if holds else 'NO'}  {name}: exit {outcome['exit_code']} at {outcome['step']}: ", end=""
        )
        print(f"{outcome['reason']}; the host is {'as before' if same else 'NOT as before'}", flush=True)
    print(f"{'PASS' if good else 'FAIL'}: {len(chosen)} payloads in {time.monotonic() - began:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
