"""Runs SGLang's own benchmark client for several rounds in one process, by the host venv's Python.

    python bench_client.py REQUEST.json

REQUEST: {"url", "dataset", "output", "num_prompts", "concurrency", "output_len", "rounds", "min_round_s",
"repeats", "also", "calibrated"}. A warm-up round, then `rounds`, then one round at each concurrency of
`also`. A round runs the prompts `repeats` times (0: as often as the warm-up says that `min_round_s` takes),
each time with the cache flushed. Each round appends one JSON line to `output`: what the client returns, with
details, and ours: warmup, also (the concurrency, or 0), repeats, loop_s (a fixed calibration loop's time
before a round that is judged; null without `calibrated`).
SGLang's own parser makes the arguments, so that options unknown here have their defaults.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import math
import os
import runpy
import statistics
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# sglang.bench_serving moved to sglang.benchmark.serving.
MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")


class _Parsed(Exception):
    def __init__(self, namespace: argparse.Namespace) -> None:
        super().__init__()
        self.namespace = namespace


def find_client() -> Any:
    """The client's module, by its new or its old name."""
    error: ImportError | None = None
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:
            # Only the client itself may be missing under one of its names, not something that it needs.
            if e.name is None or not name.startswith(e.name):
                raise
            error = e
    raise SystemExit(f"this SGLang has no benchmark client ({' or '.join(MODULES)}): {error}")


def parse(module: Any, argv: list[str]) -> argparse.Namespace:
    """What SGLang's own command line makes of `argv`; the client is not run."""
    original = argparse.ArgumentParser.parse_args

    def capture(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        raise _Parsed(original(self, *args, **kwargs))

    sys.argv = [module.__name__, *argv]
    argparse.ArgumentParser.parse_args = capture  # type: ignore[method-assign]
    try:
        if hasattr(module, "cli_main"):
            module.cli_main()
        else:  # before 0.5.14 the parser is in the module's __main__ part
            runpy.run_module(module.__name__, run_name="__main__", alter_sys=False)
    except _Parsed as parsed:
        return parsed.namespace
    finally:
        argparse.ArgumentParser.parse_args = original  # type: ignore[method-assign]
    raise SystemExit("SGLang's client did not parse its command line")


def arguments(request: dict[str, Any]) -> list[str]:
    url = urlsplit(request["url"])
    argv = [
        "--backend", "sglang",
        "--dataset-name", "custom",
        "--dataset-path", request["dataset"],
        "--num-prompts", str(request["num_prompts"]),
        "--sharegpt-output-len", str(request["output_len"]),
        "--max-concurrency", str(request["concurrency"]),
        "--request-rate", "inf",
        "--seed", "1",
        "--output-file", os.devnull,
        "--output-details",
    ]  # fmt: skip
    if url.scheme == "https":
        return [*argv, "--base-url", request["url"].rstrip("/")]
    return [*argv, "--host", url.hostname or "127.0.0.1", "--port", str(url.port or 80)]


def flush(url: str) -> None:
    """Empty the server's prefix cache, so that every round reads its prompts anew."""
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(
        url.rstrip("/") + "/flush_cache", data=b"", headers=headers, method="POST"
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as e:  # an admin key that we do not have, or a version without it
        print(f"the server's cache was not flushed: {e}", flush=True)


def calibration_loop() -> float:
    """Seconds for a fixed amount of work of one core that has nothing to do with the server."""
    begun, value = time.perf_counter(), 1
    for _ in range(1_000_000):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return time.perf_counter() - begun


def one(module: Any, namespace: argparse.Namespace, url: str) -> dict[str, Any]:
    """The client's result for all prompts once, with the cache flushed before."""
    flush(url)
    result = module.run_benchmark(copy.deepcopy(namespace))
    if not isinstance(result, dict):
        raise SystemExit("SGLang's client gave no result")
    itls = result.get("itls") or []
    ttfts = result.get("ttfts") or []
    # The client gives no latency of a request: it is its first token's time and the gaps after it.
    latencies = [t + sum(gaps) for t, gaps in zip(ttfts, itls, strict=False)]
    return {**result, "latencies": [round(v, 4) for v in latencies], "ttfts": [round(v, 4) for v in ttfts]}


def pooled(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Several results as one round: counts, times added, lists joined, medians averaged."""
    if len(results) == 1:
        return results[0]
    whole = dict(results[0])
    for key, value in results[0].items():
        if isinstance(value, list):
            whole[key] = [item for r in results for item in r.get(key) or []]
        elif key in ("completed", "duration", "total_output_tokens"):
            whole[key] = sum(r[key] for r in results)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            whole[key] = statistics.fmean(r[key] for r in results if r.get(key) is not None)
    whole["output_throughput"] = whole["total_output_tokens"] / whole["duration"]
    return whole


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    module = find_client()
    namespace = parse(module, arguments(request))
    output = Path(request["output"])
    output.unlink(missing_ok=True)
    kinds = [(True, 0)] + [(False, 0)] * request["rounds"] + [(False, c) for c in request["also"]]
    repeats = request["repeats"]
    for number, (warmup, also) in enumerate(kinds, 1):
        print(f"DDTREE-BENCH round {number} of {len(kinds)}", flush=True)
        judged = request["calibrated"] and not warmup and not also
        loop_s = round(calibration_loop(), 5) if judged else None
        namespace.max_concurrency = also or request["concurrency"]
        times = 1 if warmup else repeats
        result = pooled([one(module, namespace, request["url"]) for _ in range(times)])
        if warmup and not repeats:
            repeats = max(1, math.ceil(request["min_round_s"] / max(result["duration"], 1e-3)))
        ours = {"warmup": warmup, "also": also, "repeats": times, "loop_s": loop_s}
        with output.open("a") as f:
            f.write(json.dumps({**result, **ours}) + "\n")


if __name__ == "__main__":
    main()
