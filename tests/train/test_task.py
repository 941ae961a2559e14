"""Batches: every case once, in an order that depends on the seed and the epoch alone."""

from itertools import chain

import pytest
import torch

from eattn.train import ListDataset, TensorDataset, batches, move


def order(seed: int, epoch: int) -> list[int]:
    return list(chain(*batches(101, 8, seed=seed, epoch=epoch)))


def test_every_case_comes_once_and_only_the_last_batch_is_smaller():
    drawn = list(batches(101, 8, seed=5, epoch=2))
    assert [len(batch) for batch in drawn] == [8] * 12 + [5]
    assert sorted(chain(*drawn)) == list(range(101))
    assert list(batches(101, 8, seed=5, epoch=2, drop_last=True)) == drawn[:-1]
    assert list(batches(16, 8, seed=5, epoch=2, drop_last=True)) == list(
        batches(16, 8, seed=5, epoch=2)
    )


def test_the_order_is_a_function_of_seed_and_epoch_and_nothing_else():
    first = order(0, 1)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert order(0, 1) == first
    assert torch.equal(torch.get_rng_state(), before)


def test_no_two_seeds_or_epochs_share_an_order():
    orders = {tuple(order(seed, epoch)) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64


def test_rows_of_tensors_stay_together():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    rows, labels = TensorDataset(x, y).collate([5, 0, 5])
    assert torch.equal(rows, x[[5, 0, 5]])
    assert labels.tolist() == [5, 0, 5]
    assert len(TensorDataset(x, y)) == 6


@pytest.mark.parametrize(
    "tensors", [(), (torch.zeros(2), torch.zeros(3)), (torch.zeros(2), torch.tensor(1.0))]
)
def test_tensors_of_different_lengths_are_no_cases(tensors):
    with pytest.raises(ValueError, match="tensors must have one length, got shapes"):
        TensorDataset(*tensors)


def test_items_are_collated_by_the_function_given():
    cases = ListDataset(["a", "bb", "ccc"], lambda items: torch.tensor([len(x) for x in items]))
    assert len(cases) == 3
    assert cases.collate([2, 0]).tolist() == [3, 1]


def test_a_batch_moves_whatever_its_shape():
    batch = {"x": torch.zeros(2), "deep": [torch.ones(1), ("name", None, 3)]}
    moved = move(batch, "meta")
    assert moved["x"].device.type == moved["deep"][0].device.type == "meta"
    assert moved["deep"][1] == ("name", None, 3)
