"""A stand-in for `sglang.benchmark.serving`, for the fake venv: same options, same names in its result.

It sends the prompts of a `custom` dataset to /generate and times them; standard library only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--dataset-name")
    parser.add_argument("--dataset-path")
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--sharegpt-output-len", type=int, default=32)
    parser.add_argument("--max-concurrency", type=int, default=1)
    parser.add_argument("--request-rate", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-file")
    parser.add_argument("--output-details", action="store_true")
    return parser


def _one(args: argparse.Namespace, prompt: str) -> dict[str, Any]:
    body = {
        "text": prompt,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": args.sharegpt_output_len},
    }
    request = urllib.request.Request(
        f"http://{args.host}:{args.port}/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    start, first, made, error = time.monotonic(), 0.0, 0, ""
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    first = first or time.monotonic()
                    made = json.loads(line[6:])["meta_info"]["completion_tokens"]
    except OSError as e:
        error = str(e)
    end = time.monotonic()
    return {
        "made": made,
        "error": error,
        "ttft": (first or end) - start,
        "tpot": (end - (first or end)) / max(1, made - 1),
        "latency": end - start,
    }


def run_benchmark(args: argparse.Namespace) -> dict[str, Any]:
    """One round; times of the result in ms, duration in seconds."""
    rows = [json.loads(line) for line in Path(args.dataset_path).read_text().splitlines() if line.strip()]
    prompts = [row["conversations"][0]["content"] for row in rows][: args.num_prompts]
    start = time.monotonic()
    with ThreadPoolExecutor(args.max_concurrency) as pool:
        done = list(pool.map(lambda prompt: _one(args, prompt), prompts))
    duration = time.monotonic() - start
    good = [d for d in done if not d["error"] and d["made"]]
    tokens = sum(d["made"] for d in good)

    def ms(key: str) -> float:
        return statistics.median(d[key] for d in good) * 1e3 if good else 0.0

    return {
        "completed": len(good),
        "duration": duration,
        "output_throughput": tokens / duration,
        "request_throughput": len(good) / duration,
        "total_output_tokens": tokens,
        "median_ttft_ms": ms("ttft"),
        "median_tpot_ms": ms("tpot"),
        "median_e2e_latency_ms": ms("latency"),
        "output_lens": [d["made"] for d in done],
        "errors": [d["error"] for d in done],
    }


def cli_main() -> None:
    args = _parser().parse_args()
    result = run_benchmark(args)
    if args.output_file:
        with Path(args.output_file).open("a") as file:
            file.write(json.dumps(result) + "\n")
