"""Import gate: does this Python, with the payload as staged, have a DDTREE that builds the right trees?

Run by the host's Python with the staged files first on PYTHONPATH.  Loads plugins as SGLang's launcher does,
starts no server and loads no model.  On success the last line of stdout is exactly

    ddtree_import_ok 5 [0, 1] 777 None

(nodes with the root, accepted nodes, bonus token, the budget flag's class default); on failure the exit
status is 1 and the last line of stderr says why.
"""

import importlib
import importlib.metadata
import pkgutil
import sys
import traceback

ENTRY_POINT_GROUP, ENTRY_POINT, ENTRY_POINT_VALUE = (
    "sglang.srt.plugins",
    "ddtree",
    "sglang_ddtree.plugin:register",
)
WORKER = "sglang_ddtree.v1.worker", "sglang_ddtree.ddtree_worker"  # of the V1 line, of the newer one
INFO = "sglang_ddtree.v1.info", "sglang_ddtree.ddtree_info"
SYMBOLS = {
    "sglang_ddtree.ddtree_utils": (
        "build_ddtree_tree_from_logits",
        "build_ddtree_tree_from_topk",
        "follow_verified_tree",
        "compile_ddtree_retrieve",
        "summarize_ddtree",
        "assert_prefix_closed",
    ),
    INFO: ("DDTreeDraftInput", "DDTreeVerifyInput"),
    WORKER: (
        "DDTreeWorker",
        "DDTreeWorker._build_ddtree_verify_input",
        "DDTreeWorker._greedy_tree_paths",
        "DDTreeWorker._sample_tree_paths",
        "DDTreeWorker._commit",
        "DDTreeWorker.forward_batch_generation",
    ),
    "sglang_ddtree.plugin": ("register",),
}


class SmokeError(Exception):
    """A check failed; the text is the reason, in one line."""


def expect(what, found, wanted):
    if found != wanted:
        raise SmokeError(f"{what}: expected {wanted}, found {found}")


def check_entry_point():
    found = [
        entry.value
        for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        if entry.name == ENTRY_POINT
    ]
    if not found:
        raise SmokeError(
            f"no entry point {ENTRY_POINT!r} in group {ENTRY_POINT_GROUP}: is the .dist-info staged?"
        )
    expect(f"entry point {ENTRY_POINT}", sorted(set(found)), [ENTRY_POINT_VALUE])


def check_plugin():
    """The plugin as SGLang loads it. SGLang logs a plugin that fails and goes on, so look at what it left."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang_ddtree import versions

    versions.check_sglang_version()
    from sglang.srt.speculative.spec_info import SpecInputType, SpeculativeAlgorithm

    try:
        algorithm = SpeculativeAlgorithm.from_string("DDTREE")
    except ValueError as error:
        raise SmokeError(f"DDTREE is not registered: {error}") from error
    expect("is_ddtree() of DDTREE", algorithm.is_ddtree(), True)
    wrong = [builtin.name for builtin in SpeculativeAlgorithm if builtin.is_ddtree()]
    expect("built-in algorithms with is_ddtree()", wrong, [])
    if "DDTREE_VERIFY" not in SpecInputType.__members__:
        raise SmokeError("SpecInputType has no DDTREE_VERIFY")

    from sglang_ddtree import hooks

    hooks.install(hooks.WORKER_HOOKS)
    hooks.assert_in_place()
    expect("worker class", algorithm.factory(None).__name__, "DDTreeWorker")


def check_modules():
    package = importlib.import_module("sglang_ddtree")
    print(f"sglang_ddtree {package.__version__} from {package.__path__[0]}")
    from sglang_ddtree import release

    for module in pkgutil.walk_packages(package.__path__, "sglang_ddtree."):
        if not release.belongs_here(module.name.removeprefix("sglang_ddtree.")):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "numba":  # without it trees are built in plain Python, as the worker logs
                raise
            print(f"{module.name} left out: {error}")
    for names, symbols in SYMBOLS.items():
        module_name = names if isinstance(names, str) else names[0 if release.is_v1() else 1]
        for symbol in symbols:
            found = importlib.import_module(module_name)
            for part in symbol.split("."):
                # vars(), not getattr: a method inherited from SGLang's own worker is not ours.
                found = vars(found).get(part)
                if found is None:
                    raise SmokeError(f"{module_name} has no {symbol}")


def check_trees():
    """Both published examples in full, and a rejected root. Returns what the last line reports."""
    import torch
    from sglang_ddtree.ddtree_utils import (
        assert_prefix_closed,
        build_ddtree_tree_from_logits,
        compile_ddtree_retrieve,
        follow_verified_tree,
        summarize_ddtree,
    )

    def topology(tree):
        return tree.parents, tree.node_token_ids.tolist(), tree.node_depths.tolist()

    tree = build_ddtree_tree_from_logits(torch.tensor([[5.0, 4, 1], [4, 3, 2], [3, 2, 1]]), 5)
    assert_prefix_closed(tree)
    expect(
        "topology of the first tree", topology(tree), ([-1, 0, 1, 2, 0, 1], [0, 0, 0, 1, 1], [1, 2, 3, 1, 2])
    )
    walk = follow_verified_tree(tree.child_maps, [int(tree.node_token_ids[0]), 123, 456, 789, 111, 222])
    expect("accepted and bonus of the first tree", walk, ([0, 1], 123))
    expect(
        "summary of the first tree",
        summarize_ddtree(tree, 5, *walk).to_dict(),
        {
            "budget": 5,
            "actual_nodes": 5,
            "max_depth": 3,
            "mean_depth": 1.8,
            "leaf_count": 3,
            "branch_count": 2,
            "accepted_node_count": 2,
            "accepted_draft_count": 1,
            "accepted_path_depth": 1,
            "bonus_token_id": 123,
        },
    )
    retrieve = compile_ddtree_retrieve(tree, 7)
    expect("first children", retrieve.retrieve_next_token.tolist(), [1, 2, 3, -1, -1, -1, -1])
    expect("next siblings", retrieve.retrieve_next_sibling.tolist(), [-1, 4, 5, -1, -1, -1, -1])

    tree = build_ddtree_tree_from_logits(torch.tensor([[5.0, 4, 1], [4, 2, 1]]), 4)
    assert_prefix_closed(tree)
    expect("topology of the second tree", topology(tree), ([-1, 0, 1, 0, 3], [0, 0, 1, 0], [1, 2, 1, 2]))
    expect("a rejected root", follow_verified_tree(tree.child_maps, [555, 0, 0, 0, 0]), ([0], 555))
    accepted, bonus = follow_verified_tree(tree.child_maps, [int(tree.node_token_ids[0]), 777, 888, 999, 111])
    expect("accepted and bonus of the second tree", (accepted, bonus), ([0, 1], 777))
    return len(tree.parents), accepted, bonus


def main():
    try:
        check_entry_point()
        check_plugin()
        check_modules()
        nodes, accepted, bonus = check_trees()
        from sglang.srt.server_args import ServerArgs

        budget = ServerArgs.speculative_ddtree_budget
    except SmokeError as error:
        reason = str(error)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
    else:
        print("ddtree_import_ok", nodes, accepted, bonus, budget, flush=True)
        return 0
    print(f"ddtree_smoke: {' '.join(reason.split())}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
