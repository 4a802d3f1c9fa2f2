"""Flags, registration, hooks, refusals: what SGLang sees of the plugin."""

import os
import pickle
from importlib import metadata
from types import SimpleNamespace

import pytest
from forked import in_fork
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import ServerArgs, prepare_server_args  # noqa: E402
from sglang.srt.speculative.spec_info import SpecInputType, SpeculativeAlgorithm  # noqa: E402
from sglang.srt.speculative.spec_registry import CustomSpecAlgo  # noqa: E402
from sglang_ddtree import hooks, plugin, server_args, versions  # noqa: E402
from sglang_ddtree.release import is_v1  # noqa: E402
from sglang_ddtree.request_checks import refused_features, validate_dflash_request  # noqa: E402
from sglang_ddtree.server_args import FLAGS  # noqa: E402
from sglang_ddtree.server_checks import REFUSALS, check_server_args  # noqa: E402

MODELS = os.environ.get("DDTREE_TEST_MODELS", ".sandbox/models")
BASE = ["--model-path", f"{MODELS}/target", "--device", "cpu", "--attention-backend", "cpu_tree"]
DRAFT = ["--speculative-draft-model-path", f"{MODELS}/draft_half"]
DDTREE = [*BASE, "--speculative-algorithm", "DDTREE", *DRAFT]
SCHEDULE = ["--speculative-ddtree-budget-schedule", "1:64, 4:32,16:0"]


def newer_line_only(test):
    """0.5.13 has no such seam; not a skip, which nobody could ever lift."""
    return None if is_v1() else test


def resolved_arguments(arguments):
    """The record of a command line and its values once SGLang has resolved it; 0.5.13 does so at once."""
    args = prepare_server_args(arguments)
    if is_v1():
        return args, vars(args)
    args.resolve_once()
    return args, args.resolved_dict()


def test_the_algorithm_is_registered_and_no_built_in_claims_to_be_it():
    assert SpeculativeAlgorithm.from_string("DDTREE").is_ddtree()
    assert SpeculativeAlgorithm.from_string("ddtree").is_dflash()
    assert not any(builtin.is_ddtree() for builtin in SpeculativeAlgorithm)
    assert not CustomSpecAlgo("OTHER", None).is_ddtree()


def test_the_algorithm_has_every_method_that_the_scheduler_calls():
    algorithm = SpeculativeAlgorithm.from_string("DDTREE")
    public = {name for name in vars(SpeculativeAlgorithm) if not name.startswith("_")}
    builtins = {builtin.name for builtin in SpeculativeAlgorithm}
    missing = {name for name in public - builtins if not hasattr(algorithm, name)} - {
        "from_string",
        "register",
    }
    assert missing == set()


def test_the_verify_input_type_pickles_and_is_a_verify_input():
    member = SpecInputType.DDTREE_VERIFY
    assert pickle.loads(pickle.dumps(member)) is member is SpecInputType(int(member))
    assert [one.value for one in SpecInputType].count(member.value) == 1


def test_flags_read_none_on_the_class_and_their_effect_on_an_instance():
    assert all(getattr(ServerArgs, flag.name) is None for flag in FLAGS)
    args = prepare_server_args([*DDTREE, "--speculative-ddtree-budget", "16"])
    assert (args.speculative_ddtree_budget, args.speculative_ddtree_topk_cap) == (16, 32)
    assert pickle.loads(pickle.dumps(args)).speculative_ddtree_budget == 16
    plain = prepare_server_args(BASE)
    assert [getattr(plain, flag.name) for flag in FLAGS] == [None] * len(FLAGS)
    with pytest.raises(AttributeError, match="read-only"):
        args.speculative_ddtree_budget = 3


def test_resolution_sets_the_widths_and_shows_the_flags():
    args, resolved = resolved_arguments([*DDTREE, "--speculative-ddtree-budget", "16"])
    assert resolved["speculative_num_draft_tokens"] == 17
    assert resolved["speculative_dflash_block_size"] == 8
    assert resolved["disable_overlap_schedule"] is True
    if is_v1():
        resolved = server_args.scheduler_init_info({}, SimpleNamespace(server_args=args))
    else:
        assert resolved["speculative_draft_attention_backend"] == "cpu_tree"
    assert resolved["speculative_ddtree_budget"] == 16
    assert args.speculative_ddtree_budget == 16


@newer_line_only
def test_a_schedule_is_the_widest_budget_to_sglang():
    args = prepare_server_args([*DDTREE, *SCHEDULE])
    args.resolve_once()
    resolved = args.resolved_dict()
    assert resolved["speculative_num_draft_tokens"] == 65
    assert resolved["speculative_ddtree_budget"] == 64
    assert resolved["speculative_ddtree_budget_schedule"] == ((1, 64), (4, 32), (16, 0))
    assert pickle.loads(pickle.dumps(args)).speculative_ddtree_budget_schedule[2] == (16, 0)


def test_a_budget_below_the_block_cuts_the_block():
    _, resolved = resolved_arguments([*DDTREE, "--speculative-ddtree-budget", "3"])
    assert resolved["speculative_dflash_block_size"] == 4


def test_draft_tokens_without_a_budget_mean_one_less():
    assert (
        prepare_server_args([*DDTREE, "--speculative-num-draft-tokens", "9"]).speculative_ddtree_budget == 8
    )
    assert prepare_server_args(DDTREE).speculative_ddtree_budget == 32


def test_without_a_command_line_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("SGLANG_SPECULATIVE_DDTREE_BUDGET", "12")
    monkeypatch.setenv("SGLANG_SPECULATIVE_DDTREE_DEBUG_METRICS", "1")
    args = ServerArgs(
        model_path=f"{MODELS}/target",
        device="cpu",
        attention_backend="cpu_tree",
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=f"{MODELS}/draft_half",
    )
    assert (args.speculative_ddtree_budget, args.speculative_ddtree_debug_metrics) == (12, True)
    assert prepare_server_args([*DDTREE, "--speculative-ddtree-budget", "5"]).speculative_ddtree_budget == 5
    monkeypatch.setenv("SGLANG_SPECULATIVE_DDTREE_BUDGET", "a dozen")
    with pytest.raises(ValueError, match="SGLANG_SPECULATIVE_DDTREE_BUDGET must be an integer"):
        _ = args.speculative_ddtree_budget


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DDTREE, "--speculative-ddtree-budget", "0"], "budget must be at least 1"),
        ([*DDTREE, "--speculative-ddtree-topk-cap", "0"], "topk-cap must be at least 1"),
        ([*DDTREE, *SCHEDULE, "--speculative-ddtree-budget", "8"], "8 is not the largest budget of .*, 64"),
        ([*DDTREE, *SCHEDULE, "--speculative-num-draft-tokens", "8"], "give only one"),
        ([*DDTREE, "--speculative-ddtree-budget-schedule", "1:0"], "first budget must be at least 1"),
        (
            [*DDTREE, "--speculative-ddtree-budget", "8", "--speculative-num-draft-tokens", "8"],
            "give only one",
        ),
        ([*DDTREE, "--speculative-num-draft-tokens", "1"], "at least 2"),
        ([*BASE, "--speculative-algorithm", "DDTREE"], "needs --speculative-draft-model-path"),
        ([*BASE, "--speculative-ddtree-debug-metrics"], "debug-metrics needs --speculative-algorithm DDTREE"),
        (
            [*BASE, "--speculative-algorithm", "DFLASH", *DRAFT, "--speculative-ddtree-budget", "8"],
            "budget needs --speculative-algorithm DDTREE",
        ),
    ],
)
def test_flags_that_cannot_work_are_refused_when_parsed(arguments, message):
    with pytest.raises(ValueError, match=message):
        prepare_server_args(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pp-size", "2"],
        ["--page-size", "16"],
        ["--enable-mixed-chunk"],
        ["--speculative-accept-threshold-single", "0.9"],
        ["--speculative-accept-threshold-acc", "0.9"],
        ["--speculative-eagle-topk", "4"],
        ["--speculative-num-steps", "3"],
        ["--speculative-draft-window-size", "64"],
    ],
)
def test_options_that_ddtree_does_not_support_are_refused_at_start(arguments):
    with pytest.raises(ValueError, match=arguments[0]):
        resolved_arguments([*DDTREE, *arguments])


@newer_line_only
def test_a_hybrid_target_is_refused_without_the_unsafe_flag_and_with_a_schedule(tmp_path):
    from transformers import Qwen3NextConfig

    Qwen3NextConfig(num_hidden_layers=4, architectures=["Qwen3NextForCausalLM"]).save_pretrained(tmp_path)
    hybrid = [*DDTREE, "--model-path", str(tmp_path), "--disable-radix-cache"]
    with pytest.raises(ValueError, match="without --speculative-ddtree-allow-hybrid-unsafe"):
        resolved_arguments(hybrid)
    unsafe = [*hybrid, "--speculative-ddtree-allow-hybrid-unsafe"]
    _, resolved = resolved_arguments(unsafe)
    assert resolved["speculative_eagle_topk"] > 1, "backends of hybrids read the tree links only then"
    with pytest.raises(ValueError, match="schedule is not supported with hybrid"):
        resolved_arguments([*unsafe, *SCHEDULE])


def test_simulated_acceptance_is_refused(monkeypatch):
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3")
    with pytest.raises(ValueError, match="SGLANG_SIMULATE_ACC_LEN"):
        resolved_arguments(DDTREE)


@newer_line_only
def test_every_refused_option_is_one_that_sglang_has():
    """An option that a release lacks counts as not chosen, so a misspelt one would never be refused."""
    names = [refusal.applies.option for refusal in REFUSALS if hasattr(refusal.applies, "option")]
    known = prepare_server_args(BASE)
    assert names and [name for name in names if not hasattr(known, name)] == []


def on_an_accelerator(**changes):
    args = prepare_server_args(DDTREE)
    fields = {name: getattr(args, name) for name in args.__struct_fields__}
    decode = SimpleNamespace(backend="full")
    graphs = SimpleNamespace(decode=decode)
    return SimpleNamespace(**{**fields, "device": "cuda", "cuda_graph_config": graphs, **changes})


@newer_line_only
def test_off_the_cpu_overlap_is_refused():
    with pytest.raises(ValueError, match="overlap scheduling"):
        check_server_args(on_an_accelerator())
    check_server_args(on_an_accelerator(disable_overlap_schedule=True))


def request(**changes):
    sampling_params = SamplingParams(temperature=0)
    sampling_params.normalize(None)
    fields = {
        "return_logprob": False,
        "return_hidden_states": False,
        "return_sampling_mask": False,
        "custom_logit_processor": None,
        "multimodal_inputs": None,
    }
    for name in changes.keys() - fields.keys():
        setattr(sampling_params, name, changes[name])
    return SimpleNamespace(
        sampling_params=sampling_params, **{**fields, **{k: v for k, v in changes.items() if k in fields}}
    )


def test_an_ordinary_request_is_let_through():
    assert refused_features(request()) == []
    assert validate_dflash_request(None, request(), False) is None
    assert validate_dflash_request("in-tree verdict", request(), False) is None  # keeps SGLang's own


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"json_schema": "{}"}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"ebnf": 'root ::= "a"'}, "ebnf"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"presence_penalty": -0.1}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"min_new_tokens": 1}, "min_new_tokens"),
        ({"custom_logit_processor": "x"}, "custom_logit_processor"),
        ({"multimodal_inputs": object()}, "multimodal"),
    ],
)
def test_a_request_that_verify_would_not_honour_is_refused(changes, feature):
    assert feature in validate_dflash_request(None, request(**changes), False)
    assert feature in validate_dflash_request("an older release's verdict on DFLASH", request(**changes))


def test_a_worker_whose_hook_was_taken_away_refuses_to_start():
    def scenario():
        from sglang.srt.speculative import dflash_utils

        hooks.install(hooks.WORKER_HOOKS)
        hooks.assert_in_place()
        dflash_utils.validate_dflash_request = dflash_utils.validate_dflash_request.__wrapped__
        if is_v1():
            from sglang_ddtree.v1.worker import DDTreeWorker

            DDTreeWorker(SimpleNamespace())
        else:
            from sglang_ddtree.ddtree_worker import DDTreeWorker

            DDTreeWorker(SimpleNamespace(), 0, 0, None)

    outcome = in_fork(scenario)
    assert outcome.status != 0
    assert "HookError: DDTREE's hooks are not in place on:" in outcome.reason
    assert "validate_dflash_request" in outcome.reason


@newer_line_only
def test_without_its_resolution_hook_ddtree_refuses_to_resolve():
    def scenario():
        from sglang.srt.arg_groups import resolution_hooks

        resolution_hooks._HOOKS.clear()
        prepare_server_args(DDTREE).resolve_once()

    outcome = in_fork(scenario)
    assert outcome.status != 0
    assert "resolution hook is not in place" in outcome.reason


def test_on_an_untested_sglang_choosing_ddtree_names_the_versions():
    def scenario():
        from sglang.srt.speculative import spec_registry

        spec_registry._REGISTRY.clear()
        versions.TESTED_SGLANG_VERSIONS = ("0.5.1", "0.5.2")
        plugin._registered = False
        try:
            plugin.register()
        except versions.UnsupportedSGLangError:
            resolved_arguments(DDTREE)

    outcome = in_fork(scenario)
    assert outcome.status != 0
    found = metadata.version("sglang")
    assert f"DDTREE was tested with SGLang 0.5.1, 0.5.2 only; found {found}" in outcome.reason


def test_a_hook_whose_target_changed_is_refused():
    hook = hooks.LAUNCH_HOOKS[0]._replace(function=lambda *_: None, parameters=("parser", "extra"))
    with pytest.raises(
        hooks.HookError, match=r"add_cli_args takes \(parser\); .* made for \(parser, extra\)"
    ):
        hooks.install([hook])
    with pytest.raises(hooks.HookError, match="does not exist"):
        hooks.install([hook._replace(target="sglang.srt.server_args.ServerArgs.no_such_method")])
