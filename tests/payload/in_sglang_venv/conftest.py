"""These tests run under the SGLang venv's Python: see ``tests/payload/test_in_sglang_venv.py``."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
sys.path[:0] = [str(REPOSITORY / "payload"), str(HERE), str(HERE.parent)]


def sampling_info(rows, *, temperature=1.0, top_p=1.0, top_k=None, min_p=0.0, seeds=None):
    """SGLang's sampling state of ``rows`` requests; ``top_k`` one value or one per request."""
    import torch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.sampling.sampling_params import TOP_K_ALL

    top_ks = torch.tensor(
        top_k if isinstance(top_k, list) else [top_k or TOP_K_ALL] * rows, dtype=torch.int32
    )
    return SamplingBatchInfo(
        temperatures=torch.full((rows, 1), temperature),
        top_ps=torch.full((rows,), top_p),
        top_ks=top_ks,
        min_ps=torch.full((rows,), min_p),
        is_all_greedy=bool((top_ks == 1).all()),
        is_any_greedy=bool((top_ks == 1).any()),
        need_top_p_sampling=top_p != 1.0,
        need_top_k_sampling=bool((top_ks != TOP_K_ALL).any()),
        need_min_p_sampling=min_p > 0,
        vocab_size=8,
        sampling_seed=seeds,
        device="cpu",
    )


@pytest.fixture(scope="session")
def sampler():
    """SGLang's own sampler, in a process without a server."""
    from types import SimpleNamespace

    import torch
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.runtime_context import get_parallel, publish
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", device="cpu", sampling_backend="pytorch")
    args.resolve_once()
    publish(args, role="scheduler")
    group = SimpleNamespace(device_group=None, world_size=1)
    with get_parallel().override(tp_group=group):
        sampler = Sampler()
    sampler._sync_token_ids_across_tp = lambda *_: None
    torch.manual_seed(0)
    return sampler
