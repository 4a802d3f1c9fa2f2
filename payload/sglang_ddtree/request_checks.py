"""What a DDTREE server refuses per request, because verify would not honour it exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sglang_ddtree.release import is_v1


class RequestRefusal(NamedTuple):
    """A request feature that DDTREE refuses: ``applies(req)`` on SGLang's scheduler-side ``Req``."""

    feature: str
    applies: Callable[[Any], bool]


def _sampling(name: str, neutral: Any) -> Callable[[Any], bool]:
    return lambda req: getattr(req.sampling_params, name, neutral) != neutral  # older releases lack some


REFUSALS = (
    # 0.5.13's worker commits on its own and does not gather them.
    RequestRefusal("return_logprob", lambda req: is_v1() and bool(req.return_logprob)),
    RequestRefusal("return_hidden_states", lambda req: bool(req.return_hidden_states)),
    RequestRefusal("return_sampling_mask", lambda req: bool(getattr(req, "return_sampling_mask", False))),
    RequestRefusal("json_schema", _sampling("json_schema", None)),
    RequestRefusal("regex", _sampling("regex", None)),
    RequestRefusal("ebnf", _sampling("ebnf", None)),
    RequestRefusal("structural_tag", _sampling("structural_tag", None)),
    RequestRefusal("frequency_penalty", _sampling("frequency_penalty", 0.0)),
    RequestRefusal("presence_penalty", _sampling("presence_penalty", 0.0)),
    RequestRefusal("repetition_penalty", _sampling("repetition_penalty", 1.0)),
    RequestRefusal("min_new_tokens", _sampling("min_new_tokens", 0)),
    RequestRefusal("custom_logit_processor", lambda req: req.custom_logit_processor is not None),
    RequestRefusal("watermark", _sampling("watermark", None)),
    RequestRefusal("beam_width", lambda req: (getattr(req.sampling_params, "beam_width", None) or 1) > 1),
    RequestRefusal("multimodal inputs", lambda req: req.multimodal_inputs is not None),
)


def refused_features(req: Any) -> list[str]:
    """The features of ``req`` that DDTREE refuses."""
    return [refusal.feature for refusal in REFUSALS if refusal.applies(req)]


def validate_dflash_request(result: str | None, req: Any, enable_overlap: bool = False) -> str | None:
    """AFTER hook on DFLASH's request check, which SGLang runs for each request of a DDTREE server.

    Returns:
        The text with which the request is aborted, or None to keep SGLang's own verdict.
    """
    if features := refused_features(req):
        return f"DDTREE speculative decoding does not support {', '.join(features)}."
    return None
