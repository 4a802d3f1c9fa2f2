"""T > 0: what a verify emits has the law of drawing from the target token by token."""

import numpy as np
import pytest
import torch
from chi_square import chi_square
from conftest import sampling_info
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from sglang_ddtree.ddtree_sampling import draw_at_nodes
from sglang_ddtree.ddtree_utils import build_ddtree_tree_from_topk, follow_verified_tree
from sglang_ddtree.ddtree_walk import walk_tree
from sglang_ddtree.release import is_v1
from sglang_ddtree.tree_batch import build_ddtree_batch

if is_v1():
    from sglang_ddtree.v1.info import DDTreeVerifyInput
else:
    from sglang_ddtree.ddtree_info import DDTreeVerifyInput

DRAWS = 40_000
VOCAB = 8


def filtered(logits, temperature, top_p):
    """The target's distribution of one token, by its definition."""
    probabilities = torch.softmax(logits.double() / temperature, -1)
    ordered, order = probabilities.sort(descending=True)
    kept = torch.where(ordered.cumsum(-1) - ordered > top_p, 0.0, ordered)
    return torch.zeros_like(probabilities).scatter(0, order, kept / kept.sum())


class Case:
    """One tree with siblings at both depths, under a target whose second token depends on the first."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.first = torch.randn(VOCAB, generator=generator) * 1.2
        self.second = torch.randn(VOCAB, VOCAB, generator=generator) * 1.2
        # Two likely first tokens and flat second ones: siblings at both depths within 7 nodes.
        draft = torch.stack(
            (torch.tensor([0.0, 3, 0, 0, 2.8, 0, 0, -1]), torch.randn(VOCAB, generator=generator))
        )
        logps, ids = torch.log_softmax(draft, -1).sort(-1, descending=True)
        self.ids, self.logps = ids.numpy(), logps.numpy()
        self.tree = build_ddtree_tree_from_topk(self.ids, self.logps, budget=7)
        assert [len(children) >= 2 for children in self.tree.child_maps].count(True) >= 2

    def node_logits(self):
        """The target's logits at each node: after the root, and after each first token."""
        rows = [self.first]
        for node in range(1, len(self.tree.parents)):
            token = int(self.tree.node_token_ids[node - 1])
            rows.append(self.second[token] if self.tree.parents[node] == 0 else torch.zeros(VOCAB))
        return torch.stack(rows)

    def law(self, temperature, top_p):
        """Cells of the emission: a first token that is no child ends it, a child is followed by a second."""
        first = filtered(self.first, temperature, top_p)
        cells = {}
        for token in range(VOCAB):
            if token not in self.tree.child_maps[0]:
                cells[(token,)] = float(first[token])
                continue
            second = filtered(self.second[token], temperature, top_p)
            cells.update({(token, after): float(first[token] * second[after]) for after in range(VOCAB)})
        return cells

    def emissions(self, sampler, temperature, top_p, rows=2000):
        """What verify emits, ``DRAWS`` times, through the worker's own functions."""
        batch = build_ddtree_batch(self.ids[None].repeat(rows, 0), self.logps[None].repeat(rows, 0), budget=7)
        tokens = batch.token_ids.clone()
        verify_input = DDTreeVerifyInput(
            draft_token=tokens.view(-1),
            positions=batch.depths.view(-1),
            draft_token_num=8,
            retrieve_index=batch.retrieve_index,
            retrieve_next_token=batch.retrieve_next_token,
            retrieve_next_sibling=batch.retrieve_next_sibling,
        )
        info = sampling_info(rows, temperature=temperature, top_p=top_p)
        for _ in range(DRAWS // rows):
            logits = self.node_logits().repeat(rows, 1)
            draws = draw_at_nodes(sampler, logits, info, verify_input.positions, 8)
            paths = walk_tree(verify_input, draws, max_nodes=3)
            for row, length in zip(paths.tokens.tolist(), paths.commit_lens.tolist(), strict=True):
                yield tuple(row[:length][:2])


def statistic_of(case, emissions, temperature, top_p):
    law = case.law(temperature, top_p)
    counts = dict.fromkeys(law, 0)
    for emission in emissions:
        counts[emission] += 1
    return chi_square(list(counts.values()), list(law.values()))


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9)])
def test_the_emitted_tokens_have_the_targets_law(sampler, temperature, top_p):
    torch.manual_seed(1)
    case = Case()
    statistic, critical = statistic_of(case, case.emissions(sampler, temperature, top_p), temperature, top_p)
    print(f"T={temperature} top_p={top_p}: chi-square {statistic:.1f}, critical {critical:.1f}")
    assert statistic < critical


def test_the_test_notices_a_rule_that_is_not_lossless():
    """Accepting each child in turn with its own probability, and drawing the bonus afresh, over-counts."""
    generator = np.random.default_rng(2)
    case = Case()
    first = filtered(case.first, 1.0, 1.0).numpy()
    second = [filtered(row, 1.0, 1.0).numpy() for row in case.second]

    def wrong_rule():
        for _ in range(DRAWS):
            children = case.tree.child_maps[0]
            token = next((child for child in children if generator.random() < first[child]), None)
            if token is None:
                token = int(generator.choice(VOCAB, p=first))
            if token in children:
                yield token, int(generator.choice(VOCAB, p=second[token]))
            else:
                yield (token,)

    statistic, critical = statistic_of(case, wrong_rule(), 1.0, 1.0)
    print(f"wrong rule: chi-square {statistic:.1f}, critical {critical:.1f}")
    assert statistic > 2 * critical


def test_greedy_requests_in_a_sampled_batch_take_their_argmax(sampler):
    logits = torch.randn(2 * 5, VOCAB, generator=torch.Generator().manual_seed(3))
    logits[2, :3] = 9.0  # a tie: argmax takes the first
    info = sampling_info(2, temperature=1.0, top_k=[1, TOP_K_ALL])
    best = logits.argmax(-1).view(2, 5)
    seen = torch.stack([draw_at_nodes(sampler, logits.clone(), info, torch.arange(10), 5) for _ in range(50)])
    assert (seen[:, 0] == best[0]).all()
    assert (seen[:, 1] != best[1]).any()


@pytest.mark.parametrize("limits", [{"top_k": 1}, {"min_p": 0.999}, {"top_p": 1e-6}])
def test_a_filter_that_leaves_one_token_leaves_the_argmax(sampler, limits):
    logits = torch.randn(3 * 4, VOCAB, generator=torch.Generator().manual_seed(4))
    draws = draw_at_nodes(
        sampler, logits.clone(), sampling_info(3, temperature=1.5, **limits), torch.arange(12), 4
    )
    assert torch.equal(draws, logits.argmax(-1).view(3, 4))


def mix(seed, positions, columns):
    """A 32-bit hash of (seed, position, column): SGLang's own has no CPU build without AMX."""
    values = (
        seed.to(torch.int64)[:, None] * 0x9E3779B1 + positions.to(torch.int64)[:, None] * 0x85EBCA77
    ) ^ columns
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        values = ((values ^ ((values & 0xFFFFFFFF) >> shift)) * factor) & 0xFFFFFFFF
    return values ^ (values >> 16)


def test_a_seeded_verify_emits_what_seeded_decoding_emits(sampler, monkeypatch):
    """The draw depends on seed and position alone, so the tree and one-by-one decoding agree exactly."""
    monkeypatch.setattr("sglang.srt.layers.sampler.murmur_hash32", mix)
    case, rows, prefix = Case(), 300, 11
    seeds = torch.arange(rows)
    info = sampling_info(rows, temperature=1.0, seeds=seeds)
    positions = (prefix + torch.tensor([0, *case.tree.node_depths.tolist()])).repeat(rows)
    draws = draw_at_nodes(sampler, case.node_logits().repeat(rows, 1), info, positions, 8)
    lengths = set()
    for row in range(rows):
        accepted, bonus = follow_verified_tree(case.tree.child_maps, draws[row])
        emitted = [*(int(case.tree.node_token_ids[node - 1]) for node in accepted[1:]), bonus]
        one = sampling_info(1, temperature=1.0, seeds=seeds[row : row + 1])
        logits, expected = case.first, []
        for step in range(min(len(emitted), 2)):
            token = int(draw_at_nodes(sampler, logits[None].clone(), one, torch.tensor([prefix + step]), 1))
            expected.append(token)
            logits = case.second[token]
        assert emitted[:2] == expected
        lengths.add(len(emitted))
    assert len(lengths) > 1
