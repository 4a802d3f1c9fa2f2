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
    newer = {"is_any_greedy": bool((top_ks == 1).any())}
    return SamplingBatchInfo(
        temperatures=torch.full((rows, 1), temperature),
        top_ps=torch.full((rows,), top_p),
        top_ks=top_ks,
        min_ps=torch.full((rows,), min_p),
        is_all_greedy=bool((top_ks == 1).all()),
        need_top_p_sampling=top_p != 1.0,
        need_top_k_sampling=bool((top_ks != TOP_K_ALL).any()),
        need_min_p_sampling=min_p > 0,
        vocab_size=8,
        sampling_seed=seeds,
        device="cpu",
        **{name: value for name, value in newer.items() if name in SamplingBatchInfo.__dataclass_fields__},
    )


@pytest.fixture(scope="session")
def sampler():
    """SGLang's own sampler, in a process without a server."""
    from types import SimpleNamespace

    import torch
    from sglang.srt.layers import sampler as sampler_module
    from sglang.srt.server_args import ServerArgs
    from sglang_ddtree.release import is_v1

    group = SimpleNamespace(device_group=None, world_size=1)
    if is_v1():
        from sglang.srt.server_args import set_global_server_args_for_scheduler

        set_global_server_args_for_scheduler(
            ServerArgs(model_path="dummy", device="cpu", sampling_backend="pytorch")
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampler_module, "get_tp_group", lambda: group)
            patch.setattr(sampler_module, "is_dp_attention_enabled", lambda: False)
            sampler = sampler_module.Sampler()
    else:
        from sglang.srt.runtime_context import get_parallel, publish

        args = ServerArgs(model_path="dummy", device="cpu", sampling_backend="pytorch")
        args.resolve_once()
        publish(args, role="scheduler")
        with get_parallel().override(tp_group=group):
            sampler = sampler_module.Sampler()
    sampler._sync_token_ids_across_tp = lambda *_: None
    torch.manual_seed(0)
    return sampler
