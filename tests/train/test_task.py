"""Tasks and datasets; batches contain every sample once, in an order set by seed and epoch."""

from itertools import chain

import pytest
import torch
from train.problem_helpers import loss, points

from eattn.train import ListDataset, Task, TensorDataset, batches, move


def order(seed: int, epoch: int) -> list[int]:
    return list(chain(*batches(101, 8, seed=seed, epoch=epoch)))


def test_batches_contain_every_sample_once():
    drawn = list(batches(101, 8, seed=5, epoch=2))
    assert [len(batch) for batch in drawn] == [8] * 12 + [5]
    assert sorted(chain(*drawn)) == list(range(101))
    assert list(batches(101, 8, seed=5, epoch=2, drop_last=True)) == drawn[:-1]
    even = [list(batches(16, 8, seed=5, epoch=2, drop_last=drop)) for drop in (True, False)]
    assert even[0] == even[1]


def test_the_order_depends_on_seed_and_epoch_only():
    first = order(0, 1)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert order(0, 1) == first
    assert torch.equal(torch.get_rng_state(), before)
    orders = {tuple(order(seed, epoch)) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64


def test_tensor_dataset_returns_rows():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    rows, labels = TensorDataset(x, y).collate([5, 0, 5])
    assert torch.equal(rows, x[[5, 0, 5]])
    assert labels.tolist() == [5, 0, 5]
    assert len(TensorDataset(x, y)) == 6


@pytest.mark.parametrize(
    "tensors", [(), (torch.zeros(2), torch.zeros(3)), (torch.zeros(2), torch.tensor(1.0))]
)
def test_tensors_of_different_lengths_raise(tensors):
    with pytest.raises(ValueError, match="tensors must have one length, got shapes"):
        TensorDataset(*tensors)


def test_list_dataset_uses_the_given_function():
    dataset = ListDataset(["a", "bb", "ccc"], lambda items: torch.tensor([len(x) for x in items]))
    assert len(dataset) == 3
    assert dataset.collate([2, 0]).tolist() == [3, 1]


def test_move_keeps_the_structure_of_a_batch():
    batch = {"x": torch.zeros(2), "deep": [torch.ones(1), ("name", None, 3)]}
    moved = move(batch, "meta")
    assert moved["x"].device.type == moved["deep"][0].device.type == "meta"
    assert moved["deep"][1] == ("name", None, 3)


def test_an_incomplete_metric_raises():
    dataset = TensorDataset(*points())
    with pytest.raises(ValueError, match="better must be 'higher' or 'lower' for metric 'f1'"):
        Task(dataset, loss, lambda model: {}, metric="f1")
    with pytest.raises(ValueError, match="metric must be 'train_loss' without evaluate"):
        Task(dataset, loss, metric="f1", better="higher")
