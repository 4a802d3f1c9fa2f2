"""Ranks that hold a part of the vocabulary each agree with one that holds it all."""

import threading
from types import SimpleNamespace

import pytest
import torch
from sglang_ddtree import vocab_shards
from sglang_ddtree.draft_topk import device_topk, draft_log_probs, stable_topk
from sglang_ddtree.vocab_shards import VocabShard, shard_argmax, shard_topk, vocab_shard

NAN, INF = float("nan"), float("inf")


class Ranks:
    """As many threads as ranks, and a group whose all-gather they meet in; counts what is exchanged."""

    def __init__(self, count):
        self.count, self.exchanged = count, 0
        self.slots = [None] * count
        self.barrier = threading.Barrier(count)

    def run(self, function, rows, width, *arguments):
        """``function(shard logits, shard, *arguments)`` on every rank, over shards of ``width`` columns."""
        results = [None] * self.count

        def rank(index):
            def all_gather_into_tensor(output, own):
                self.slots[index] = own
                self.barrier.wait(60)
                output.copy_(torch.cat(self.slots))
                self.barrier.wait(60)
                if index == 0:
                    self.exchanged += own.numel()

            group = SimpleNamespace(world_size=self.count, all_gather_into_tensor=all_gather_into_tensor)
            own = rows[:, index * width : (index + 1) * width]
            shard = VocabShard(group, index * width, own.shape[1])
            # A padded head: what stands there must not be seen.
            padded = torch.cat((own, torch.full((len(rows), width + 3 - own.shape[1]), INF)), 1)
            results[index] = function(padded, shard, *arguments)

        threads = [threading.Thread(target=rank, args=(index,)) for index in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(result is not None for result in results)
        return results


def rows_of(kind, count=40, vocabulary=70):
    generator = torch.Generator().manual_seed(hash_of(kind))
    rows = torch.randn(count, vocabulary, generator=generator) * 3
    if kind == "ties":
        rows = rows.round()
    if kind == "odd":
        rows[0], rows[1, 5], rows[2], rows[3, [3, 60]] = NAN, NAN, -INF, INF
        rows[4, 3:], rows[5], rows[6, :66] = -INF, 2.0, -INF
    return rows


def hash_of(kind):
    return sum(kind.encode())


@pytest.fixture(params=[stable_topk, device_topk], ids=["CPU", "accelerator"])
def own_topk(request, monkeypatch):
    """How each rank ranks its own columns."""
    monkeypatch.setattr(vocab_shards, "ranked_topk", request.param)


@pytest.mark.usefixtures("own_topk")
@pytest.mark.parametrize("kind", ["plain", "ties", "odd"])
@pytest.mark.parametrize(("ranks", "width"), [(2, 35), (4, 20), (8, 9)])
@pytest.mark.parametrize("k", [1, 8, 16, 50])
def test_top_k_over_shards_is_that_of_the_whole_row(kind, ranks, width, k):
    rows = rows_of(kind)
    expected_logps, expected_ids = stable_topk(draft_log_probs(rows), k)
    group = Ranks(ranks)
    found = group.run(shard_topk, rows, width, k)
    logps, ids = found[0]
    assert all(torch.equal(logps, other[0]) and torch.equal(ids, other[1]) for other in found)
    finite = expected_logps > -INF
    assert torch.equal(finite, logps > -INF)
    assert torch.allclose(logps[finite], expected_logps[finite], rtol=0, atol=2e-6)
    assert torch.equal(ids[finite], expected_ids[finite])
    assert group.exchanged == len(rows) * (2 * k + 2), "more than the candidates was exchanged"


@pytest.mark.parametrize("kind", ["plain", "ties"])
def test_argmax_over_shards_is_that_of_the_whole_row(kind):
    rows = rows_of(kind)
    group = Ranks(4)
    found = group.run(shard_argmax, rows, 20)
    assert all(torch.equal(ids, rows.argmax(-1)) for ids in found)
    assert group.exchanged == 2 * len(rows)


def test_one_rank_and_an_unsplit_head_hold_the_whole_vocabulary():
    indices = SimpleNamespace(num_added_elements=0, org_vocab_start_index=35, num_org_elements=35)
    two = SimpleNamespace(world_size=2)
    assert vocab_shard(SimpleNamespace(shard_indices=indices), SimpleNamespace(world_size=1)) is None
    assert vocab_shard(SimpleNamespace(), two) is None
    assert vocab_shard(SimpleNamespace(shard_indices=indices), two) == VocabShard(two, 35, 35)
    indices.num_added_elements = 1
    with pytest.raises(ValueError, match="added"):
        vocab_shard(SimpleNamespace(shard_indices=indices), two)
