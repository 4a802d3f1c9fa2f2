"""`make rtt`: a rollout through all gates over a WAN of RTT 0, 20 and 100 ms, beside a hand-written one.

Both do the same work on equal hosts (systemd, a stub service; six modules of 30 kB), in the same run, in
turns. Round trips are the slope of wall time over RTT. The verdict: at most 14 round trips, and at RTT 100 ms
at most 1.25 times the hand-written script, one tar over one ssh (`handmade_rollout.sh`).

Needs root (see tests/lab). Exit status 1 when the verdict is not met.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.lab.controller import Controller
from tests.lab.hosts import Host, Lab, wait_for
from tests.lab.payloads import OVERLAID, make_payload, write_playbooks
from tests.lab.wan import wan

RTTS_MS = (0, 20, 100)
ROUND_TRIPS = 14.0
RATIO = 1.25  # of the hand-written script's seconds, at the longest RTT
# The first ones pass while the program loads, but these wait for each other: login, session, command, cargo.
AT_LEAST = 4
FILES, SIZE = 6, 30_000
LAUNCH = {"set": {"speculative-algorithm": "DDTREE"}}
HERE = Path(__file__).parent
# Where this is set, each start of a command compiles it anew, which no user's does.
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass
class Series:
    """Wall seconds, and CPU seconds of controller and host, of one contestant, by RTT in ms."""

    name: str
    wall: dict[int, list[float]] = field(default_factory=dict)
    cpu: list[float] = field(default_factory=list)
    host_cpu: list[float] = field(default_factory=list)

    def add(self, rtt: int, wall: float, cpu: float, host_cpu: float) -> None:
        self.wall.setdefault(rtt, []).append(wall)
        self.cpu.append(cpu)
        self.host_cpu.append(host_cpu)

    def best(self, rtt: int) -> float:
        """The least disturbed run."""
        return min(self.wall[rtt])

    def round_trips(self) -> float:
        """Least-squares slope of the best wall time over RTT."""
        return slope([(rtt / 1e3, self.best(rtt)) for rtt in self.wall])


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope of y over x."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return over / sum((x - mean_x) ** 2 for x, _ in points)


def timed(argv: list[str], stdin: bytes = b"", cwd: Path | None = None) -> tuple[float, float, str]:
    """Run to success: wall seconds, CPU seconds of it and its children, output."""
    before = os.times()
    start = time.monotonic()
    done = subprocess.run(
        argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd, env=ENV, check=False
    )
    wall = time.monotonic() - start
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise SystemExit(f"{shlex.join(argv)[:300]}\nexit status {done.returncode}\n{text[-4000:]}")
    return wall, cpu, text


def rollout(controller: Controller, payload: Path) -> tuple[float, float]:
    """One rollout by the product; wall and CPU."""
    (name,) = controller.hosts
    argv = [sys.executable, "-m", "ddtree_deploy", "rollout", name, "--yes", "--json"]
    argv += ["--hosts", str(controller.folder / "hosts.yaml"), "--payload", str(payload)]
    argv += ["--playbook", str(controller.folder / "rollout.yaml")]
    with controller.lab.inside():
        wall, cpu, _ = timed(argv, cwd=controller.folder)
    return wall, cpu


def archive(payload: Path, prompts: Path) -> bytes:
    """The tar of the hand-written rollout: files as they will lie in site-packages, checks, digests."""
    site = {
        f"site/{p.relative_to(payload)}": p.read_bytes()
        for p in sorted((payload / "tiny_ddtree").glob("*.py"))
    }
    site[f"site/{OVERLAID}"] = (payload / "overlay/dflash_info.py").read_bytes()
    info = "site/tiny-0.dist-info"
    site[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: tiny\nVersion: 0\n"
    site[f"{info}/entry_points.txt"] = b"[sglang.srt.plugins]\ntiny = tiny_ddtree:register\n"
    files = site | {
        "checks/tiny_smoke.py": (payload / "checks/tiny_smoke.py").read_bytes(),
        "prompts.jsonl": prompts.read_bytes(),
    }
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in (files | {"SHA256SUMS": sums.encode()}).items():
            info_ = tarfile.TarInfo(name)
            info_.size = len(data)
            tar.addfile(info_, io.BytesIO(data))
    return out.getvalue()


def handmade(host: Host, payload: Path, prompts: Path) -> tuple[float, float]:
    """One rollout by the hand-written script; wall and CPU, packing included."""
    start, cpu = time.monotonic(), time.process_time()
    data = archive(payload, prompts)
    packing, packing_cpu = time.monotonic() - start, time.process_time() - cpu
    script = (HERE / "handmade_rollout.sh").read_text()
    argv = [*host.lab.ssh_command(), host.address, f"bash -c {shlex.quote(script)}"]
    wall, cpu, text = timed(argv, data)
    if "DONE" not in text.splitlines():
        raise SystemExit(f"the hand-written rollout did not end: {text[-2000:]}")
    return wall + packing, cpu + packing_cpu


def same_work(playbook: Path) -> None:
    """Leave out the gates that the hand-written script does not have."""
    book = yaml.safe_load(playbook.read_text())
    book["steps"] = [
        s for s in book["steps"] if (s if isinstance(s, str) else next(iter(s))) not in ("acceptance", "soak")
    ]
    playbook.write_text(yaml.safe_dump(book, sort_keys=False))


def measure(folder: Path, repeats: int) -> tuple[Series, Series]:
    """Both contestants at every RTT, in turns."""
    ours, theirs = Series("ddtree-deploy"), Series("tar over ssh")
    with Lab(folder) as lab:
        mine, other = lab.add(2)
        controller = Controller(folder / "controller", [mine])
        entry = mine.inventory()
        entry["service"]["launch"] = LAUNCH
        controller.write_hosts({mine.name: entry})
        write_playbooks(controller.folder)
        same_work(controller.folder / "rollout.yaml")
        prompts = controller.folder / "prompts.jsonl"
        for host in (mine, other):
            wait_for(host.generates, "the stub service")
        with wan(lab) as line:
            for repeat in range(repeats + 1):  # the first is not counted: caches fill
                for rtt in RTTS_MS:
                    line.set(delay_ms=rtt / 2)
                    version = f"0.{repeat + 1}.{rtt}"
                    payload = make_payload(folder / version, version=version, files=FILES, size=SIZE)
                    for series, host in ((ours, mine), (theirs, other)):
                        before = host.cpu_seconds()
                        if series is ours:
                            wall, cpu = rollout(controller, payload)
                        else:
                            wall, cpu = handmade(other, payload, prompts)
                        say = f"  RTT {rtt:3} ms  {series.name:14} {wall:6.2f} s"
                        print(say, file=sys.stderr, flush=True)
                        if repeat:
                            series.add(rtt, wall, cpu, host.cpu_seconds() - before)
    return ours, theirs


def table(series: list[Series]) -> str:
    """Best wall seconds by RTT, median CPU seconds of controller and host, round trips."""
    head = "".join(f"{f'RTT {rtt} ms':>14}" for rtt in RTTS_MS)
    lines = [f"{'':16}{head}{'controller CPU':>17}{'host CPU':>11}{'round trips':>14}"]
    for one in series:
        walls = "".join(f"{one.best(rtt):>12.2f} s" for rtt in RTTS_MS)
        cpus = f"{statistics.median(one.cpu):>15.2f} s{statistics.median(one.host_cpu):>9.2f} s"
        lines.append(f"{one.name:16}{walls}{cpus}{one.round_trips():>14.1f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="counted runs at each RTT (default 5)")
    parser.add_argument("--folder", type=Path, help="for the hosts' disks (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddtree-rtt-", dir=args.folder) as folder:
        ours, theirs = measure(Path(folder), args.repeats)
    print(table([ours, theirs]))
    trips, last = ours.round_trips(), RTTS_MS[-1]
    if min(trips, theirs.round_trips()) < AT_LEAST:
        print(
            f"NOT MEASURED: a slope below the {AT_LEAST} round trips that any rollout waits for is noise; "
            "the machine is too busy. Run it idle, or with more --repeats."
        )
        return 1
    few = trips <= ROUND_TRIPS
    ratio = ours.best(last) / theirs.best(last)
    fast = ratio <= RATIO
    print(f"round trips: {trips:.1f} (at most {ROUND_TRIPS:.0f}): {'ok' if few else 'TOO MANY'}")
    print(
        f"at RTT {last} ms: {ours.best(last):.2f} s against {theirs.best(last):.2f} s by hand, "
        f"{ratio:.2f} x (at most {RATIO}): {'ok' if fast else 'TOO SLOW'}"
    )
    return 0 if few and fast else 1


if __name__ == "__main__":
    sys.exit(main())
