"""`make downtime`: how long users are without service, and how much of that is ours.

On one lab host (systemd, a stub service that takes its time to end and to load) a client outside asks
without a pause. It sees the gap of `systemctl restart`, which is the server's own, and those of a rollout
and a rollback, in turns. Ours is the difference of the medians; the product's own `down_s` is compared with
what the client saw.

Needs root (see tests/lab). Exit status 1 where ours is over the limit, or `down_s` is wrong.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from tests.lab.controller import Controller
from tests.lab.hosts import Host, Lab, wait_for
from tests.lab.image import COMMAND, PORT, Image
from tests.lab.payloads import make_payload, write_playbooks

OURS_S = 1.0
AGREE_S = 0.5  # the product's last answer is that of its drain; the client is still served until the stop
EXIT_S, LOAD_S = 1.5, 3.0
PERIOD_S = 0.01
LAUNCH = {"set": {"speculative-algorithm": "DDTREE"}}
GATES = ("baseline", "tokens", "acceptance", "benchmark", "soak")  # they do not change the gap
BODY = json.dumps({"text": "one two", "sampling_params": {"max_new_tokens": 2, "temperature": 0}})


class Client(threading.Thread):
    """Asks from the controller's network; keeps when it was answered."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self.host, self.answers, self._over = host, list[float](), threading.Event()

    def run(self) -> None:
        with self.host.lab.inside():
            while not self._over.wait(PERIOD_S):
                if self._answered():
                    self.answers.append(time.monotonic())

    def _answered(self) -> bool:
        line = http.client.HTTPConnection(self.host.address, PORT, timeout=2.0)
        try:
            line.request("POST", "/generate", BODY, {"Content-Type": "application/json"})
            return bool(json.loads(line.getresponse().read())["output_ids"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return False
        finally:
            line.close()

    def gap(self, begun: float) -> float:
        """The longest time without an answer since `begun`."""
        count = len(self.answers)
        wait_for(lambda: len(self.answers) > count + 5, "the service to answer the client")
        seen = [begun, *(t for t in self.answers if t >= begun)]
        return max(after - before for before, after in itertools.pairwise(seen))

    def __enter__(self) -> Client:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()


def measure(folder: Path, repeats: int) -> tuple[dict[str, list[float]], list[float]]:
    """Gaps by what made them, as the client saw them; and by how much `down_s` differs."""
    gaps: dict[str, list[float]] = {"restart": [], "rollout": [], "rollback": []}
    off = []
    with Lab(folder) as lab:
        host = lab.host(Image(command=COMMAND.replace("--host 127.0.0.1", "--host 0.0.0.0")))
        controller = Controller(folder / "controller", [host])
        entry = host.inventory()
        entry["service"]["launch"] = LAUNCH
        controller.write_hosts({host.name: entry})
        write_playbooks(controller.folder, **dict.fromkeys(GATES))
        payload = make_payload(folder / "payload")
        wait_for(host.generates, "the stub service")
        host.mood(exit_s=EXIT_S, load_s=LOAD_S)
        with Client(host) as client:
            for repeat in range(repeats + 1):  # the first is not counted: caches fill
                for name in ("restart", "rollout", "restart", "rollback"):
                    begun, told = time.monotonic(), None
                    if name == "restart":
                        host.run("systemctl restart sglang.service")
                        wait_for(host.generates, "the restarted service")
                    else:
                        words = ["--playbook", str(controller.folder / f"{name}.yaml")]
                        words += ["--payload", str(payload)] if name == "rollout" else []
                        told = controller.run(name, host.name, "--yes", *words).expect(0).outcome["down_s"]
                    gap = client.gap(begun)
                    said = "" if told is None else f", down_s {told:.2f} s ({told - gap:+.2f})"
                    print(f"  {name:8} {gap:6.2f} s{said}", file=sys.stderr, flush=True)
                    if repeat:
                        gaps[name].append(gap)
                        off += [] if told is None else [told - gap]
    return gaps, off


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="counted rollouts and rollbacks (default 5)")
    parser.add_argument("--folder", type=Path, help="for the host's disk (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddtree-downtime-", dir=args.folder) as folder:
        gaps, off = measure(Path(folder), args.repeats)
    own = statistics.median(gaps["restart"])
    for name, seen in gaps.items():
        median = statistics.median(seen)
        print(f"{name:10}{median:6.2f} s   {min(seen):.2f} to {max(seen):.2f}   ours {median - own:5.2f} s")
    worst = max(off, key=abs)
    agrees = abs(worst) <= AGREE_S
    print(f"down_s is off by {worst:+.2f} s at most (allowed {AGREE_S} s): {'ok' if agrees else 'WRONG'}")
    ours = max(statistics.median(gaps[name]) for name in ("rollout", "rollback")) - own
    print(f"ours: {ours:.2f} s (at most {OURS_S})")
    return 0 if ours <= OURS_S and agrees else 1


if __name__ == "__main__":
    sys.exit(main())
