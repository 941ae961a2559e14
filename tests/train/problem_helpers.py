"""A small problem that the tests of training share: which side of a line is a point on?"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn.train import History, Task, TensorDataset, isolated

COUNT, SIDES = 40, 2


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


def accuracy(model: nn.Module) -> dict[str, float]:
    x, y = points()
    return {"accuracy": (model(x).argmax(1) == y).float().mean().item()}


def plain() -> Task:
    return Task(TensorDataset(*points()), loss)


def judged() -> Task:
    return Task(TensorDataset(*points()), loss, accuracy, metric="accuracy", better="higher")


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def timeless(history: History) -> History:
    """All but the seconds, which no two runs share."""
    rows = tuple(replace(row, seconds=0.0) for row in history.rows)
    best = None if history.best is None else replace(history.best, seconds=0.0)
    return replace(history, rows=rows, best=best, seconds=0.0)
