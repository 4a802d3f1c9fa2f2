"""How far the self-check's nodes are off: by rounding here, and under faults put in on purpose.

    python -m benchmarks.self_check_study MODEL [--seeds N] [--fault NAME] [-- server arguments]

Starts a server on MODEL (a folder in the test models' folder, such as ``target`` or ``hybrid``; a hybrid
needs ``TRITON_INTERPRET=1``).  Its worker runs the self-check's comparison over N seeds, prints the
figures and ends.  docs/payload.md quotes them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FAULTS = ("mask", "positions", "grandparent", "sibling", "topk")
BUDGET = 16


def register():
    """The plugin's entry point, in the server's processes."""
    import os

    import torch
    from sglang_ddtree import ddtree_worker, self_check, spec_algorithm

    fault, seeds = os.environ["STUDY_FAULT"], int(os.environ["STUDY_SEEDS"])
    if fault == "topk":
        spec_algorithm.HYBRID_TOPK = 1
    build = ddtree_worker.DDTreeWorker._build_ddtree_verify_input

    def build_faulty(worker, batch, bonus_tokens, trees, window):
        return build(worker, batch, bonus_tokens, with_fault(trees, fault), window)

    def study(worker):
        shape = worker.tree_shapes()[0]
        rows = []
        with torch.no_grad():
            for seed in range(seeds):
                logits = self_check.node_logits(worker, shape, seed)
                rows.append(self_check.relative_distance(logits.served, logits.alone))
        distances = torch.stack(rows)
        runner = worker.model_runner
        dtype = self_check.roughest_dtype(runner)
        off = distances > self_check.tolerance_of(dtype)
        allowed = self_check.strays_allowed(distances.shape[1], runner)
        print(
            f"study: {seeds} x {distances.shape[1]} nodes, {dtype}: median {distances.median():.2g}, "
            f"largest {distances.max():.2g}, {int(off.sum())} above {self_check.tolerance_of(dtype):g}, "
            f"per start {off.sum(1).tolist()}, {allowed} allowed",
            flush=True,
        )
        os._exit(3)

    ddtree_worker.DDTreeWorker._build_ddtree_verify_input = build_faulty
    ddtree_worker.check_verify_path = study


def with_fault(trees, fault):
    """``trees`` of a batch, with a wrong mask or wrong positions; those on the device stay as they are."""
    from dataclasses import replace

    import torch

    if fault in ("", "topk"):
        return trees
    sees = trees.visibility.clone()
    if fault == "mask":  # a chain's
        return replace(trees, visibility=torch.ones_like(sees).tril())
    if fault == "positions":  # a chain's
        return replace(trees, depths=torch.arange(trees.depths.shape[1]).expand_as(trees.depths))
    for row, parents in enumerate(trees.parents.tolist()):
        for node, parent in enumerate(parents):
            if fault == "grandparent" and parent > 0:  # not seen
                sees[row, node, parents[parent]] = False
            if fault == "sibling" and (younger := int(trees.retrieve_next_sibling[row, node])) >= 0:
                sees[row, younger, node] = True
    return replace(trees, visibility=sees)


def main():
    sys.path[:0] = [str(REPOSITORY / "tests" / "payload"), str(REPOSITORY)]
    from serving import DDTREE
    from sglang_venv import MODELS, PAYLOAD, Server, install_as_wheel

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("arguments", nargs="*", help="of the server, behind --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        install_as_wheel(place, PAYLOAD / "sglang_ddtree", "ddtree", "sglang_ddtree.plugin:register")
        install_as_wheel(place, Path(__file__), "study", "self_check_study:register")
        arguments = [
            *("--model-path", str(MODELS / options.model), "--disable-radix-cache", *DDTREE),
            *("--speculative-ddtree-budget", str(BUDGET), "--speculative-ddtree-allow-hybrid-unsafe"),
            *options.arguments,
        ]
        variables = {"STUDY_FAULT": options.fault, "STUDY_SEEDS": str(options.seeds)}
        server = Server("study", place / "log", [place], arguments, **variables)
        try:
            server.process.wait(1800)
        finally:
            server.stop()
        found = [line for line in server.log.read_text(errors="replace").splitlines() if "study: " in line]
        print(found[-1] if found else server.log_tail())
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
