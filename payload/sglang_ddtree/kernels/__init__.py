"""Triton kernels for the trees of a batch: fixed shapes, one launch each, no host sync.

    build      ranked candidates ``[bs, L, k]`` -> trees, bit for bit those of ``tree_reference``
    compile    trees -> the arrays that verify reads, the ancestor mask in the backend's layout included
    walk       the target's choices -> accepted paths, greedy and sampled alike

The rest is done by others: ``torch.topk`` ranks the candidates; SGLang's ``Sampler`` draws at T > 0
(temperature, top-k, top-p, min-p, seeds), its ``move_accept_tokens_to_target_kvcache`` moves the accepted KV,
its ``commit_mamba_states_after_verify`` the recurrent state.

Nothing here imports SGLang.  The kernels are tested against the reference under ``TRITON_INTERPRET=1``; on a
GPU, ``checks/gpu_selftest.py`` compares them with it before a server is started.
"""

import torch
import triton


def rows_per_program(rows: int, on_device: int) -> int:
    """Rows that one program works on: ``on_device``, but all of them (at most 4096) under the interpreter.

    The interpreter takes some 0.3 ms an operation, whatever its width.
    """
    if not is_interpreted():
        return on_device
    return min(4096, max(2, triton.next_power_of_2(rows)))


def is_interpreted() -> bool:
    """Whether this process runs Triton kernels on the CPU (``TRITON_INTERPRET=1`` before Triton's import)."""
    return bool(triton.knobs.runtime.interpret)


def can_run_on(device: torch.device | str) -> bool:
    return torch.device(device).type != "cpu" or is_interpreted()
