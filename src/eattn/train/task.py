"""Describe a task: a dataset, the loss of a batch, and the metric that selects weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from eattn.distributed import Shard

Batch = Any  # a pytree of tensors
Loss = Tensor | tuple[Tensor, float]
TRAIN_LOSS = "train_loss"  # metric of every run, without an `evaluate`


class Dataset(Protocol):
    """Samples by index."""

    def __len__(self) -> int: ...

    def collate(self, indices: list[int]) -> Batch:
        """Return the batch of these samples, on the CPU or on the model's device."""
        ...


@runtime_checkable
class SharedDataset(Protocol):
    """A dataset whose batches depend on all of their samples, such as by a common padding."""

    def collate_share(self, indices: list[int], batch: list[int]) -> Batch:
        """Return the samples `indices`, one process's share of `batch`."""
        ...


class TensorDataset:
    """Rows of tensors of equal length; a batch is a tuple of their rows.

    Examples
    --------
    >>> dataset = TensorDataset(torch.arange(6).reshape(3, 2), torch.tensor([7, 8, 9]))
    >>> dataset.collate([2, 0])
    (tensor([[4, 5],
            [0, 1]]), tensor([9, 7]))
    """

    def __init__(self, *tensors: Tensor) -> None:
        lengths = {len(x) if x.dim() else 0 for x in tensors}
        if len(lengths) != 1:
            shapes = ", ".join(str(tuple(x.shape)) for x in tensors) or "none"
            raise ValueError(f"tensors must have one length, got shapes {shapes}")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def collate(self, indices: list[int]) -> tuple[Tensor, ...]:
        rows = torch.tensor(indices)
        return tuple(x[rows.to(x.device)] for x in self.tensors)


class ListDataset:
    """Items of any kind, and a function that makes a batch of them, such as by padding.

    Examples
    --------
    >>> dataset = ListDataset([torch.ones(2), torch.ones(3)], torch.nn.utils.rnn.pad_sequence)
    >>> dataset.collate([0, 1]).shape
    torch.Size([3, 2])
    """

    def __init__(self, items: Sequence[Any], collate: Callable[[list[Any]], Batch]) -> None:
        self.items, self._collate = items, collate

    def __len__(self) -> int:
        return len(self.items)

    def collate(self, indices: list[int]) -> Batch:
        return self._collate([self.items[i] for i in indices])


@dataclass(frozen=True)
class Task:
    """Dataset, loss and metrics that `train` fits a model to.

    Parameters
    ----------
    dataset : Dataset
    loss : callable
        `loss(model, batch)` returns the mean over the batch, or (mean, weight) if the batch does
        not count by its number of samples but, say, by its valid tokens.
    evaluate : callable, optional
        `evaluate(model)` returns named metrics; called in eval mode without gradients.
    metric : str, optional
        Metric that decides about early stopping and the best weights; "train_loss" is the mean
        loss since the last evaluation.
    better : "higher" or "lower"
        Required with `metric`.
    data : str, optional
        Digest of the data. A run is resumed only with equal data.
    shard : callable, optional
        `shard(batch, shard)` returns this process's tokens of a batch and their Shard, for
        `sequence_parallel`; the loss is then the mean over these tokens.

    Examples
    --------
    >>> x = torch.randn(8, 3)
    >>> Task(TensorDataset(x), lambda model, batch: model(batch[0]).square().mean())
    Task(8 samples)
    """

    dataset: Dataset
    loss: Callable[[nn.Module, Batch], Loss]
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    metric: str | None = None
    better: Literal["higher", "lower"] | None = None
    data: str | None = None
    shard: Callable[[Batch, Shard], tuple[Batch, Shard]] | None = None

    def __post_init__(self) -> None:
        if self.metric is None:
            return
        if self.better not in ("higher", "lower"):
            raise ValueError(
                f"better must be 'higher' or 'lower' for metric {self.metric!r},"
                f" got {self.better!r}"
            )
        if self.evaluate is None and self.metric != TRAIN_LOSS:
            raise ValueError(f"metric must be {TRAIN_LOSS!r} without evaluate, got {self.metric!r}")

    def __repr__(self) -> str:
        metric = "" if self.metric is None else f", {self.better} {self.metric} is better"
        return f"Task({len(self.dataset)} samples{metric})"

    def weighted(self, result: Loss, size: int) -> tuple[Tensor, float]:
        """Check a result of `loss` for `size` samples, and return it with its weight."""
        loss, weight = result if isinstance(result, tuple) else (result, size)
        if not isinstance(loss, Tensor) or loss.dim():
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss must return a tensor without dimensions, got {got}")
        if not loss.requires_grad:
            raise ValueError("loss must depend on the model's parameters, got one without gradient")
        return loss, float(weight)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Evaluate the model and check the names of the metrics."""
        found = {} if self.evaluate is None else self.evaluate(model)
        metrics = {name: float(value) for name, value in found.items()}
        if TRAIN_LOSS in metrics:
            raise ValueError(f"evaluate must not return {TRAIN_LOSS!r}, which every run has")
        if self.metric not in (None, TRAIN_LOSS, *metrics):
            raise ValueError(
                f"metric must be one that evaluate returns ({', '.join(metrics) or 'none'}),"
                f" or {TRAIN_LOSS!r}, got {self.metric!r}"
            )
        return metrics

    def improves(self, value: float, best: float | None) -> bool:
        """Return whether a value is strictly better than the best so far; NaN never is."""
        if value != value:
            return False
        if best is None:
            return True
        return value > best if self.better == "higher" else value < best


def batches(
    count: int, size: int, *, seed: int, epoch: int, drop_last: bool = False
) -> Iterator[list[int]]:
    """Yield all of `count` indices once, `size` at a time, in an order set by (seed, epoch).

    Examples
    --------
    >>> [sorted(batch) for batch in batches(3, 8, seed=0, epoch=1)]
    [[0, 1, 2]]
    """
    # Mixed so that neighbouring seeds share no epoch: (0, 1) and (1, 0) are different orders.
    mixed = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mixed))
    for batch in order.split(size):
        if len(batch) == size or not drop_last:
            yield batch.tolist()


def move(batch: Batch, device: torch.device | str) -> Batch:
    """Move every tensor of a batch to a device."""
    return pytree.tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), batch)
