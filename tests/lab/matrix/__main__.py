"""Runs the matrix; prints each cell, a table, and `faults survived: N/N`. Exit code 0 if all were."""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

from tests.lab import need
from tests.lab.hosts import Lab
from tests.lab.matrix import cells, commands, fleet, mutations, table


def main() -> int:
    options = _options()
    rng = random.Random(options.seed)
    chosen = cells.singles()
    chosen += cells.doubles(options.doubles, rng)
    if options.short:
        chosen = cells.short(rng)
    chosen = [cell for cell in chosen if re.search(options.only, str(cell))]
    chosen = cells.shuffled(chosen, rng)
    if options.part:
        part, parts = map(int, options.part.split("/"))
        chosen = chosen[part - 1 :: parts]
    if options.sample:
        chosen = chosen[: options.sample]
    if options.list:
        print("\n".join(map(str, sorted(chosen, key=str))))
        print(table.left_out())
        return 0
    if not chosen and not options.mutations:
        print(f"no cell is named like {options.only!r}; --list names them, --doubles N draws more pairs")
        return 2
    begun = time.monotonic()
    commands.prepare()
    print(f"seed {options.seed}, {len(chosen)} cells, {options.hosts} hosts", flush=True)
    with Lab(need.folder_for_disks()) as lab, tempfile.TemporaryDirectory(prefix="matrix-") as users:
        if options.mutations:
            return mutations.run(lab, Path(users), options.seed, Path(options.evidence), options.only)
        trials = fleet.run(
            lab,
            Path(users),
            chosen,
            hosts=options.hosts,
            seed=options.seed,
            evidence=Path(options.evidence),
            seconds=60 * options.minutes,
        )
    print(table.render(trials))
    print(table.left_out())
    counted = [t for t in trials if t.struck]
    survived = sum(t.survived for t in counted)
    if len(trials) < len(chosen):
        print(f"NOT RUN: {len(chosen) - len(trials)} of {len(chosen)} cells")
    print(f"seed {options.seed}, {(time.monotonic() - begun) / 60:.1f} minutes")
    print(f"faults survived: {survived}/{len(counted)}")
    return 0 if len(trials) == len(chosen) and all(t.survived for t in trials) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.matrix", description=__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--hosts", type=int, default=6, help="hosts side by side")
    parser.add_argument("--doubles", type=int, default=48, help="how many pairs of faults")
    parser.add_argument("--only", default="", help="cells whose name this regular expression is found in")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, at random")
    parser.add_argument(
        "--part", default="", metavar="K/N", help="the K-th of N parts of them all; needs --seed"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no cell after so many (0: run all)")
    parser.add_argument("--short", action="store_true", help="every fault once, at a random step")
    parser.add_argument("--list", action="store_true", help="print the cells, run none")
    parser.add_argument("--mutations", action="store_true", help="with each undo disabled in turn")
    parser.add_argument(
        "--evidence", default="build/faults", help="folder for what failing cells left (journals, output)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
