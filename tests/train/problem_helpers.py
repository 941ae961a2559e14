"""A small problem for the tests of training: on which side of a line is a point?"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn.train import Batch, History, Task, TensorDataset, isolated

COUNT, SIDES = 40, 2


class Interrupted(Exception):
    """Raised by a loss to end a run."""


def points(count: int = COUNT) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(3))
    return x, (x.sum(1) > 0).long()


def net(seed: int = 0, *, dropout: float = 0.2) -> nn.Module:
    with isolated(seed):
        return nn.Sequential(
            nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, SIDES)
        )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def weighted(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Weight one side three times, so that two shares of a batch rarely weigh the same."""
    x, y = batch
    each = F.cross_entropy(model(x), y, reduction="none")
    count = 1.0 + 2.0 * y
    return (each * count).sum() / count.sum(), float(count.sum())


def accuracy(model: nn.Module) -> dict[str, float]:
    x, y = points()
    return {"accuracy": (model(x).argmax(1) == y).float().mean().item()}


def plain(of=loss) -> Task:
    return Task(TensorDataset(*points()), of)


def scored(of=loss, count: int = COUNT) -> Task:
    """A task with a metric."""
    return Task(TensorDataset(*points(count)), of, accuracy, metric="accuracy", better="higher")


def interrupted(task: Task, step: int) -> Task:
    """The task, whose loss raises at a step, counted from 1."""
    calls = iter(range(1, 1000))

    def fail(model, batch):
        if next(calls) == step:
            raise Interrupted
        return task.loss(model, batch)

    return replace(task, loss=fail)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Return whether the weights are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def timeless(history: History) -> History:
    """The history without seconds, which differ between runs."""
    rows = tuple(replace(row, seconds=0.0) for row in history.rows)
    best = None if history.best is None else replace(history.best, seconds=0.0)
    return replace(history, rows=rows, best=best, seconds=0.0)
