"""Greedy continuations by transformers alone: ``hf_reference.py MODEL PROMPTS.json NEW_TOKENS OUT.json``.

Run by the SGLang venv's Python. OUT holds, per prompt, the tokens and at each the gap between the best and
the second log-prob, by which a divergence is judged a tie.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.inference_mode()
def main(model_path, prompts_file, new_tokens, out_file):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    results = []
    for prompt in json.loads(Path(prompts_file).read_text()):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        cache, step, tokens, gaps = None, ids, [], []
        for _ in range(int(new_tokens)):
            out = model(step, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            best = torch.log_softmax(out.logits[0, -1], -1).topk(2)
            tokens.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            step = best.indices[:1].view(1, 1)
        results.append({"tokens": tokens, "gaps": gaps})
    Path(out_file).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
