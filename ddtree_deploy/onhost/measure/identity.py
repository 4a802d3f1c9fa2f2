"""What a measurement belongs to: figures of another model, SGLang, GPU or dtype are no reference here."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..context import Context, StepFailed
from ..facts import host_facts
from ..service import serving
from ..service.sglang_api import Endpoint, HttpError, server_info


def of(info: dict[str, Any], gpus: list[str]) -> dict[str, str]:
    """model, sglang, gpu, dtype, quantization, tp out of SGLang's /server_info; "" for what it does not say.

    Two servers with equal identities may be compared token for token. The model goes by the last part of its
    path: the same model lies elsewhere on another host.
    """
    model = str(info.get("model_path") or "").rstrip("/").rsplit("/", 1)[-1]
    count = Counter(gpus)
    return {
        "model": model,
        "sglang": str(info.get("version") or ""),
        "gpu": ", ".join(f"{n} x {name}" for name, n in sorted(count.items())) or "none",
        "dtype": str(info.get("dtype") or ""),
        "quantization": str(info.get("quantization") or ""),
        "tp": str(info.get("tp_size") or ""),
    }


def algorithm(info: dict[str, Any]) -> str:
    """The speculative algorithm that a server says it runs; "" for none."""
    value = info.get("speculative_algorithm")
    return str(value) if value and str(value).upper() != "NONE" else ""


def of_server(ctx: Context, endpoint: Endpoint) -> tuple[dict[str, str], dict[str, Any]]:
    """The identity of a running server on this host, and its /server_info. Raises StepFailed."""
    try:
        info = serving.call(ctx, lambda: server_info(endpoint))
    except HttpError as e:
        raise StepFailed(str(e)) from e
    found, _ = host_facts.gpus()
    return of(info, [gpu.name for gpu in found]), info
