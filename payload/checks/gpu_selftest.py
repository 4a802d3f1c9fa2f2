"""GPU gate: do the Triton kernels, compiled for this host's GPU, compute what the plain reference computes?

Run by the host's Python with the staged files first on PYTHONPATH, on one GPU with 1 GiB free (some 500 MiB
of that are the CUDA context); under 60 s, most of it imports and compilation.  Prints each kernel's time.
On success the last line of stdout is ``gpu_selftest_ok``; on any difference, and where there is no GPU, the
exit status is 1 and the last line of stderr says why.

``--interpret`` runs smaller shapes on the CPU by Triton's interpreter: that tests this script, not a GPU.
"""

import argparse
import os
import statistics
import sys
import time
import traceback

# (batch, L, k, budget)
GPU_SHAPES = ((32, 15, 32, 16), (32, 15, 32, 64), (16, 15, 32, 256), (4, 15, 32, 1024), (64, 7, 8, 24))
INTERPRETER_SHAPES = ((24, 7, 8, 12), (6, 16, 3, 40))
REPEATS = 20


class SelfTestError(Exception):
    """A kernel's result is wrong, or there is nothing to run it on; the text is the reason, in one line."""


class Timer:
    """Median microseconds of a call: by CUDA events, after a warm-up that compiles."""

    def __init__(self, torch, device):
        self.torch, self.on_gpu = torch, device != "cpu"

    def __call__(self, function):
        if not self.on_gpu:
            start = time.perf_counter()
            result = function()
            return result, (time.perf_counter() - start) * 1e6
        result = function()
        took = []
        for _ in range(REPEATS):
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end) * 1e3)
        return result, statistics.median(took)


def candidates(torch, generator, batch, depth, width):
    """Ranked candidates with ties, rows that end early, an empty row, a certain token, and token 0."""
    logits = torch.randn(batch, depth, width, generator=generator) * 2
    logits[::2] = (logits[::2] * 2).round() / 2  # as half precision ties
    logps = torch.log_softmax(logits, -1).sort(-1, descending=True).values
    ids = torch.stack([torch.randperm(1000, generator=generator)[:width] for _ in range(batch * depth)])
    logps[1 % batch, depth // 2, width // 2 :] = -torch.inf
    logps[2 % batch, -1] = -torch.inf
    logps[3 % batch, 0, :1], logps[3 % batch, 0, 1:] = 0.0, -torch.inf
    ids = ids.view(batch, depth, width)
    ids[:, 0][ids[:, 0] == 0], ids[:, 0, 0] = 1000, 0
    return ids, logps


def same(torch, what, found, expected):
    """Raise unless ``found`` equals ``expected``, bit for bit; name the first request that differs."""
    found = found.cpu()
    if not torch.equal(found, expected):
        if found.shape != expected.shape:
            raise SelfTestError(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
        wrong = (found != expected).nonzero()[0].tolist()
        raise SelfTestError(
            f"{what}: {int((found != expected).sum())} of {expected.numel()} entries differ, the first at "
            f"{wrong}: {found[tuple(wrong)].item()} instead of {expected[tuple(wrong)].item()}"
        )


def check_shape(torch, timer, device, generator, shape):
    """Build, compile in both mask layouts, and walk trees of one shape."""
    from sglang_ddtree import tree_batch
    from sglang_ddtree.ddtree_utils import follow_verified_tree
    from sglang_ddtree.kernels.build import build_trees
    from sglang_ddtree.kernels.compile import compile_trees
    from sglang_ddtree.kernels.walk import walk_trees

    tree_batch.select_builder = lambda *_: tree_batch.build_with_reference
    batch, depth, width, budget = shape
    nodes, name = budget + 1, f"bs={batch} L={depth} k={width} budget={budget}"
    ids, logps = candidates(torch, generator, batch, depth, width)
    expected = tree_batch.build_ddtree_batch(ids.numpy(), logps.numpy(), budget)
    trees, build_us = timer(lambda: build_trees(ids.to(device), logps.to(device), budget))
    for field in ("num_nodes", "parents", "ranks", "depths", "token_ids", "scores"):
        same(torch, f"build, {name}, {field}", getattr(trees, field), getattr(expected, field))

    roots = torch.randint(1000, (batch,), generator=generator)
    prefix = torch.randint(1, 300, (batch,), generator=generator)
    tokens = expected.token_ids.clone()
    tokens[:, 0] = roots
    masks = {
        False: expected.visibility.flatten(),
        True: torch.cat(
            [
                torch.cat((torch.ones(nodes, int(size), dtype=torch.bool), sees), 1).flatten()
                for size, sees in zip(prefix, expected.visibility, strict=True)
            ]
        ),
    }
    compile_us = {}
    on_device = roots.to(device), prefix.to(device)
    for full, mask in masks.items():
        compiled, compile_us[full] = timer(
            lambda full=full: compile_trees(trees, *on_device, int(prefix.sum()), full_mask=full)
        )
        what = f"compile, {name}, {'FULL_MASK' if full else 'QLEN_ONLY'}"
        same(torch, f"{what}, mask", compiled.custom_mask, mask)
        same(torch, f"{what}, tokens", compiled.draft_token, tokens.flatten())
        same(torch, f"{what}, positions", compiled.positions, (prefix[:, None] + expected.depths).flatten())
        for field in ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling"):
            same(torch, f"{what}, {field}", getattr(compiled, field), getattr(expected, field))

    choices = torch.randint(1000, (batch, nodes), generator=generator)
    # The last child of every node but each third: walks that go deep, and end.
    for row, parents in enumerate(expected.parents.tolist()):
        for node, parent in enumerate(parents):
            if parent >= 0 and parent % 3 != 2:
                choices[row, parent] = expected.token_ids[row, node]
    accept = torch.full((batch, depth + 1), -1, dtype=torch.int32)
    bonus = torch.zeros(batch, dtype=torch.int64)
    for row, tree in enumerate(expected.trees()):
        accepted, bonus[row] = follow_verified_tree(tree.child_maps, choices[row])
        accept[row, : len(accepted)] = torch.tensor(accepted, dtype=torch.int32) + row * nodes
    on_device = choices.to(device)
    paths, walk_us = timer(lambda: walk_trees(trees.parents, compiled.draft_token, on_device, depth + 1))
    same(torch, f"walk, {name}, accept_index", paths.accept_index, accept)
    same(torch, f"walk, {name}, bonus", paths.bonus_tokens, bonus)
    same(torch, f"walk, {name}, lengths", paths.commit_lens, (accept >= 0).sum(1, dtype=torch.int32))
    print(
        f"{name}: build {build_us:.0f} us, compile {compile_us[False]:.0f} us (QLEN_ONLY) "
        f"{compile_us[True]:.0f} us (FULL_MASK), walk {walk_us:.0f} us",
        flush=True,
    )


def check_topk(torch, timer, device, generator, vocab):
    from sglang_ddtree.draft_topk import device_topk, stable_topk

    values = (torch.randn(15, vocab, generator=generator) * 4).round() / 4
    on_device = values.to(device)
    (top, index), topk_us = timer(lambda: device_topk(on_device, 32))
    expected = stable_topk(values, 32)
    same(torch, f"topk, V={vocab}, values", top, expected[0])
    same(torch, f"topk, V={vocab}, ids", index, expected[1])
    print(f"topk of 15 x {vocab}: {topk_us:.0f} us", flush=True)


def run(interpret):
    start = time.perf_counter()
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not interpret and not torch.cuda.is_available():
        raise SelfTestError("no GPU: torch.cuda.is_available() is False")
    device = "cpu" if interpret else "cuda"
    print("Triton's interpreter on the CPU" if interpret else torch.cuda.get_device_name(), flush=True)
    import sglang_ddtree

    print(f"sglang_ddtree {sglang_ddtree.__version__} from {sglang_ddtree.__path__[0]}", flush=True)
    timer, generator = Timer(torch, device), torch.Generator().manual_seed(0)
    for shape in INTERPRETER_SHAPES if interpret else GPU_SHAPES:
        check_shape(torch, timer, device, generator, shape)
    check_topk(torch, timer, device, generator, 2000 if interpret else 152_000)
    peak = "" if interpret else f", {torch.cuda.max_memory_reserved() / 2**20:.0f} MiB besides the context"
    print(f"{time.perf_counter() - start:.1f} s{peak}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interpret", action="store_true", help="on the CPU, by Triton's interpreter")
    try:
        run(parser.parse_args().interpret)
    except SelfTestError as error:
        reason = str(error)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
    else:
        print("gpu_selftest_ok", flush=True)
        return 0
    print(f"gpu_selftest: {' '.join(reason.split())}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
