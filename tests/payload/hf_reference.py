"""What transformers alone says, as the reference. Run by the SGLang venv's Python:

``hf_reference.py greedy MODEL PROMPTS.json NEW_TOKENS OUT.json``: per prompt, the greedy tokens, and at each
its log-prob and the gap to the second best, by which a divergence is judged a tie.

``hf_reference.py law MODEL PROMPTS.json NEW_TOKENS OUT.json``: for the first prompt, every continuation that
sampling at temperature 1 with top_k 2 can give, with its probability.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def greedy(model, ids, new_tokens):
    cache, step, tokens, gaps, logprobs = None, ids, [], [], []
    for _ in range(new_tokens):
        out = model(step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = torch.log_softmax(out.logits[0, -1], -1).topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        logprobs.append(float(best.values[0]))
        step = best.indices[:1].view(1, 1)
    return {"tokens": tokens, "gaps": gaps, "logprobs": logprobs}


def law(model, ids, new_tokens):
    continuations = [([], 1.0)]
    for _ in range(new_tokens):
        longer = []
        for tokens, probability in continuations:
            step = torch.cat((ids, torch.tensor([tokens], dtype=ids.dtype)), dim=1)
            best = model(step).logits[0, -1].double().topk(2)
            for token, share in zip(
                best.indices.tolist(), torch.softmax(best.values, -1).tolist(), strict=True
            ):
                longer.append(([*tokens, token], probability * share))
        continuations = longer
    return continuations


@torch.inference_mode()
def main(what, model_path, prompts_file, new_tokens, out_file):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    encoded = [
        tokenizer(prompt, return_tensors="pt").input_ids
        for prompt in json.loads(Path(prompts_file).read_text())
    ]
    if what == "law":
        result = law(model, encoded[0], int(new_tokens))
    else:
        result = [greedy(model, ids, int(new_tokens)) for ids in encoded]
    Path(out_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
