"""Make the sandbox's models: a tiny target, two DFlash drafts for it, and a hybrid target.

Run by the sandbox's Python (torch and transformers), from anywhere:

    python models.py OUT_DIR [--prompts FILE.jsonl] [--hybrid]

It writes ``OUT_DIR/target`` (Qwen3, random weights, byte-level BPE trained on the prompts),
``OUT_DIR/draft_half`` (a DFlash draft that is right now and then), ``OUT_DIR/draft_full`` (one that knows the
target's greedy continuations of the prompts by heart) and, with ``--hybrid``, ``OUT_DIR/hybrid``
(Qwen3-Next).
The same seeds give the same files on the same machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS = 512, 64, 128, 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
POSITIONS, ROPE_THETA, EPS = 2048, 10000.0, 1e-6
END, MASK = 0, 1
BLOCK = 8
TARGET_LAYERS = (1, 2)
CONTINUATION = 72
HALF_ACCEPT = 1.5
ANCHORS, LEARNING_RATE, MAX_STEPS = 8, 1.5e-2, 1000
SHAPE: dict[str, int] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
}
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def make_tokenizer(texts: list[str], out: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `VOCABULARY` tokens, trained on ``texts``: no download."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|mask|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", mask_token="<|mask|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(out)
    return fast


def make_target(out: Path) -> Qwen3ForCausalLM:
    """A Qwen3 of about 0.3 million random weights, wide enough apart that greedy choices are clear."""
    torch.manual_seed(0)
    config = Qwen3Config(
        **SHAPE,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=END,
        tie_word_embeddings=False,
        initializer_range=0.25,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32).eval()
    model.save_pretrained(out)
    return model


def make_hybrid(target: Path, out: Path) -> None:
    """A Qwen3-Next (gated delta net and attention by turns, experts) with the target's tokenizer."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    torch.manual_seed(0)
    config = Qwen3NextConfig(
        **SHAPE,
        max_position_embeddings=POSITIONS,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        mlp_only_layers=[],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        decoder_sparse_step=1,
        layer_types=["linear_attention", "full_attention"] * 2,
        full_attention_interval=2,
        bos_token_id=None,
        eos_token_id=END,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    Qwen3NextForCausalLM(config).to(torch.float32).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(target / name, out)


class Continuations:
    """The target's greedy continuations of prompts, with the hidden states that the draft is fed.

    Attributes:
        ids: ``[n, length]`` int64, left-aligned: prompt, `CONTINUATION` tokens, padding.
        prompt_lengths: ``[n]``.
        features: ``[n, length, len(TARGET_LAYERS) * HIDDEN]`` float32.
    """

    def __init__(self, model: Qwen3ForCausalLM, prompts: list[list[int]]) -> None:
        self.prompt_lengths = torch.tensor([len(ids) for ids in prompts])
        length = int(self.prompt_lengths.max()) + CONTINUATION
        self.ids = torch.zeros((len(prompts), length), dtype=torch.long)
        with torch.inference_mode():
            for i, ids in enumerate(_greedy(model, prompts)):
                self.ids[i, : len(ids)] = ids
            # Causal attention: the padding behind a sequence's end changes nothing before it.
            states = model(self.ids, output_hidden_states=True).hidden_states
        self.features = torch.cat([states[layer + 1] for layer in TARGET_LAYERS], -1).clone()


def _greedy(model: Qwen3ForCausalLM, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Each prompt with the `CONTINUATION` tokens that the target continues it by, end token or not."""
    length = max(len(ids) for ids in prompts)
    ids = torch.tensor([[END] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=CONTINUATION,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=END,
    )
    return [row[length - len(prompt) :] for row, prompt in zip(out, prompts, strict=True)]


class Draft:
    """One DFlash layer in plain torch, with the parameter names of SGLang's ``DFlashDraftModel``."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        torch.manual_seed(1)
        self.embedding = target.get_input_embeddings().weight.detach()
        self.head = target.lm_head.weight.detach()
        layer = "layers.0."
        shapes = {
            "fc": (HIDDEN, len(TARGET_LAYERS) * HIDDEN),
            layer + "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            layer + "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            layer + "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            layer + "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        norms = {
            "hidden_norm": HIDDEN,
            "norm": HIDDEN,
            layer + "self_attn.q_norm": HEAD_DIM,
            layer + "self_attn.k_norm": HEAD_DIM,
            layer + "input_layernorm": HIDDEN,
            layer + "post_attention_layernorm": HIDDEN,
        }
        self.weights = {f"{name}.weight": torch.randn(shape) * 0.1 for name, shape in shapes.items()}
        self.weights |= {f"{name}.weight": torch.ones(size) for name, size in norms.items()}
        for weight in self.weights.values():
            weight.requires_grad_(True)

    def logits(self, ids: torch.Tensor, features: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Logits of the masked places of each block.

        Args:
            ids: ``[n, length]``.
            features: ``[n, length, len(TARGET_LAYERS) * HIDDEN]``.
            anchors: ``[n, a]``, the position of each block's first token, which is known.

        Returns:
            ``[n, a, BLOCK - 1, VOCABULARY]``: place j predicts the token at ``anchor + j + 1``.
        """
        n, length = ids.shape
        count = anchors.shape[1]
        block = torch.full((n, count, BLOCK), MASK)
        block[..., 0] = ids.gather(1, anchors)
        x = self.embedding[block]
        positions = anchors[..., None] + torch.arange(BLOCK)
        hidden = self._norm(x, "layers.0.input_layernorm")
        q = self._heads(hidden, "q", HEADS, positions)
        context = self._norm(features @ self.weights["fc.weight"].T, "hidden_norm")
        k = torch.cat(
            (
                self._heads(context, "k", KV_HEADS, torch.arange(length).expand(n, -1)),
                self._heads(hidden, "k", KV_HEADS, positions).flatten(1, 2),
            ),
            1,
        )
        v = torch.cat(
            (self._heads(context, "v", KV_HEADS), self._heads(hidden, "v", KV_HEADS).flatten(1, 2)), 1
        )
        q, k, v = (
            t.repeat_interleave(HEADS // t.shape[-2], -2).transpose(1, 2) for t in (q.flatten(1, 2), k, v)
        )
        # A block sees the context before its anchor, and all of itself.
        owner = torch.arange(count).repeat_interleave(BLOCK)
        before = torch.arange(length) < anchors[:, owner, None]
        same_block = (owner[:, None] == owner).expand(n, -1, -1)
        mask = torch.cat((before, same_block), -1)[:, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        mixed = mixed.unflatten(1, (count, BLOCK))
        x = x + self._linear(mixed.flatten(-2), "self_attn.o_proj")
        hidden = self._norm(x, "layers.0.post_attention_layernorm")
        gate = F.silu(self._linear(hidden, "mlp.gate_proj"))
        x = x + self._linear(gate * self._linear(hidden, "mlp.up_proj"), "mlp.down_proj")
        return self._norm(x, "norm")[:, :, 1:] @ self.head.T

    def save(self, out: Path) -> None:
        """Write a checkpoint that SGLang loads as a DFlash draft."""
        out.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: w.detach().contiguous() for name, w in self.weights.items()}, out / "model.safetensors"
        )
        config = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            **SHAPE,
            "num_hidden_layers": 1,
            "rms_norm_eps": EPS,
            "rope_theta": ROPE_THETA,
            "max_position_embeddings": POSITIONS,
            "torch_dtype": "float32",
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "num_target_layers": LAYERS,
            "block_size": BLOCK,
            "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TARGET_LAYERS)},
        }
        (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[f"layers.0.{name}.weight"].T

    def _heads(
        self, x: torch.Tensor, kind: str, heads: int, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = self._linear(x, f"self_attn.{kind}_proj").unflatten(-1, (heads, HEAD_DIM))
        if positions is None:
            return y
        return _rotate(self._norm(y, f"layers.0.self_attn.{kind}_norm"), positions)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weights[f"{name}.weight"]


def _rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding (NeoX halves) of ``[..., heads, HEAD_DIM]`` at ``positions`` ``[...]``."""
    frequencies = ROPE_THETA ** -(torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = positions[..., None].float() * frequencies
    cos, sin = angles.cos()[..., None, :], angles.sin()[..., None, :]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def train(draft: Draft, data: Continuations, half: Path, full: Path) -> None:
    """Train until the draft knows every continuation; save it on the way when it is right now and then.

    ``half`` is saved when a chain would accept `HALF_ACCEPT` tokens a step over the prompts, ``full`` when
    every token of every block is right.

    Raises:
        RuntimeError: that took more than `MAX_STEPS` steps.
    """
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(draft.weights.values(), lr=LEARNING_RATE)
    count, span = data.ids.shape[0], CONTINUATION - BLOCK + 1
    starts = data.prompt_lengths[:, None]
    half_saved = False
    for step in range(MAX_STEPS):
        anchors = starts + torch.rand((count, span), generator=generator).argsort(1)[:, :ANCHORS]
        logits = draft.logits(data.ids, data.features, anchors)
        loss = F.cross_entropy(logits.flatten(0, -2), _targets(data, anchors).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() > 3.6 or (step % (10 if half_saved else 2)):
            continue
        right = _right(draft, data, starts + torch.arange(span))
        accept = chain_accept_length(right)
        if not half_saved and accept >= HALF_ACCEPT:
            draft.save(half)
            half_saved = True
            print(f"draft_half: {step + 1} steps, chain accept length {accept:.2f}", flush=True)
        if bool(right.all()):
            draft.save(full)
            print(f"draft_full: {step + 1} steps, chain accept length {accept:.2f}", flush=True)
            return
    raise RuntimeError(f"the draft has not learned the continuations in {MAX_STEPS} steps")


def chain_accept_length(right: torch.Tensor) -> float:
    """Tokens a verify step of a chain, over all prompts.

    Args:
        right: ``[n, span, BLOCK - 1]`` bool, whether the draft's token is the target's, for each anchor.
    """
    accepted = 1 + right.int().cumprod(-1).sum(-1)
    tokens = steps = 0
    for row in accepted.tolist():
        at = 0
        while at < len(row):
            at += row[at]
            steps += 1
        tokens += at
    return tokens / steps


def _right(draft: Draft, data: Continuations, anchors: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return draft.logits(data.ids, data.features, anchors).argmax(-1) == _targets(data, anchors)


def _targets(data: Continuations, anchors: torch.Tensor) -> torch.Tensor:
    places = anchors[..., None] + torch.arange(1, BLOCK)
    return data.ids.gather(1, places.flatten(1)).view_as(places)


def read_prompts(path: Path) -> list[str]:
    """The prompts as the gates send them: the raw text of each line's field ``prompt``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines if line.strip()]


def main(arguments: list[str]) -> int:
    """Make the models; returns the exit status."""
    here = Path(__file__).resolve()
    parser = argparse.ArgumentParser(description="Make the sandbox's tiny models.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=Path, default=here.parents[2] / "playbooks" / "prompts.jsonl")
    parser.add_argument("--hybrid", action="store_true", help="make OUT_DIR/hybrid too")
    options = parser.parse_args(arguments)
    # One thread: sums in one order, so the same weights each time; and the models are too small for two.
    torch.set_num_threads(1)
    began = time.monotonic()
    prompts = read_prompts(options.prompts)
    target_folder = options.out / "target"
    tokenizer = make_tokenizer([*prompts, "assistant:", "user:", "system:"], target_folder)
    target = make_target(target_folder)
    if options.hybrid:
        make_hybrid(target_folder, options.out / "hybrid")
    data = Continuations(target, [tokenizer.encode(prompt) for prompt in prompts])
    train(Draft(target), data, options.out / "draft_half", options.out / "draft_full")
    print(f"models: {len(prompts)} prompts, {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
