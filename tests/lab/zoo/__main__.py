"""Tells the story of each host; prints a line a cell, and `hosts told truly: N/N`. Exit code 0: all were."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.lab import need
from tests.lab.zoo import cells, fleet


def main() -> int:
    options = _options()
    drafts = [d for d in cells.all_of(options.seed, options.bred) if re.search(options.only, d.name)]
    if options.list:
        for draft in drafts:
            print(
                f"{draft.name}: {', '.join(draft.traits)}"
                + (f"; may be refused: {draft.refused}" if draft.refused else "")
            )
        return 0
    if not drafts:
        print(f"no host is named like {options.only!r}; --list names them")
        return 2
    begun = time.monotonic()
    print(f"seed {options.seed}, {len(drafts)} hosts, {options.hosts} side by side", flush=True)
    with tempfile.TemporaryDirectory(prefix="zoo-") as users:
        told = fleet.run(
            need.folder_for_disks(),
            Path(users),
            drafts,
            hosts=options.hosts,
            seed=options.seed,
            evidence=Path(options.evidence),
            seconds=60 * options.minutes,
        )
    for cell in sorted(told, key=lambda t: t.draft.name):
        if not cell.truly:
            print(f"UNTRUE {cell.draft.title}: {cell.problems[0]}")
    ends = Counter(t.ended.partition(":")[0] or "untrue" for t in told)
    print(f"seed {options.seed}, {(time.monotonic() - begun) / 60:.1f} minutes; {dict(ends)}")
    if len(told) < len(drafts):
        print(f"NOT RUN: {len(drafts) - len(told)} of {len(drafts)} hosts")
    print(f"hosts told truly: {sum(t.truly for t in told)}/{len(told)}")
    return 0 if len(told) == len(drafts) and all(t.truly for t in told) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.zoo", description=__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--bred", type=int, default=100, help="how many hosts are made up by the seed")
    parser.add_argument("--hosts", type=int, default=6, help="hosts side by side")
    parser.add_argument("--only", default="", help="hosts whose name this regular expression is found in")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no host after so many (0: run all)")
    parser.add_argument("--list", action="store_true", help="print the hosts, run none")
    parser.add_argument("--evidence", default="build/zoo", help="folder for what untrue cells left")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
