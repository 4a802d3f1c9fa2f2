"""What the payload's modules import of SGLang, where no SGLang is installed to tell.

A module that both lines of SGLang load may import at its top only what both have. Their full tests run with
``make sglang-versions``; this one notices at once, in every run, that a module has left the common ground.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "payload" / "sglang_ddtree"
# Checked against 0.5.13, 0.5.22 and 0.5.23.
IN_EVERY_RELEASE = {
    "sglang.srt.layers.logits_processor": {"LogitsProcessorOutput"},
    "sglang.srt.managers.schedule_batch": {"Req", "ScheduleBatch"},
    "sglang.srt.plugins.hook_registry": {"HookRegistry", "HookType"},
    "sglang.srt.sampling.sampling_batch_info": {"SamplingBatchInfo"},
    "sglang.srt.sampling.sampling_params": {"SamplingParams"},
    "sglang.srt.speculative.dflash_info": {"DFlashVerifyInput"},
    "sglang.srt.speculative.spec_info": {"SpecInputType", "SpeculativeAlgorithm"},
    "sglang.srt.speculative.spec_registry": {"CustomSpecAlgo"},
}


def constant(name):
    tree = ast.parse((PACKAGE / "release.py").read_text())
    assigned = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    return set(ast.literal_eval(assigned[name]))


def modules():
    """Every module by its dotted name below the package."""
    for file in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        yield name, ast.parse(file.read_text())


def top_imports(tree):
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module, {alias.name for alias in node.names}


def test_the_modules_that_are_for_one_line_exist():
    names = {name for name, _ in modules()}
    assert constant("V1_MODULES") <= names and constant("V2_MODULES") <= names


def test_a_module_for_both_lines_imports_what_both_have():
    of_one_line = constant("V1_MODULES") | constant("V2_MODULES")
    strangers = [
        f"{name}: {module} {', '.join(sorted(names - IN_EVERY_RELEASE.get(module, set())))}"
        for name, tree in modules()
        if name not in of_one_line and name != "v1.algorithm"
        for module, names in top_imports(tree)
        if module.split(".")[0] == "sglang" and not names <= IN_EVERY_RELEASE.get(module, set())
    ]
    assert strangers == [], (
        "import it where it is used, list the module in release.V2_MODULES, or, if 0.5.13 has it, here"
    )


def test_a_module_for_both_lines_imports_none_that_is_for_one():
    of_one_line = constant("V1_MODULES") | constant("V2_MODULES")
    wrong = [
        f"{name}: {module}"
        for name, tree in modules()
        if name not in of_one_line
        for module, names in top_imports(tree)
        for imported in (module, *(f"{module}.{one}" for one in names))
        if imported.removeprefix("sglang_ddtree.") in of_one_line
    ]
    assert wrong == []
