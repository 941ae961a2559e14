"""What is learnt from: cases by number, and batches of them in an order that can be repeated."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Batch = Any  # a pytree of tensors: one, a tuple or a dictionary of them, or deeper


class Cases(Protocol):
    """`len` cases, and any of them side by side."""

    def __len__(self) -> int: ...

    def collate(self, indices: list[int]) -> Batch:
        """The batch of these cases, in this order, on the CPU or on the model's device."""
        ...


@runtime_checkable
class SharedCases(Protocol):
    """Cases of which a batch is more than its cases: a share of it must know all of it."""

    def collate_share(self, indices: list[int], batch: list[int]) -> Batch:
        """As `collate`, of the cases that a process takes of a batch."""
        ...


class TensorCases:
    """Rows of tensors of one length: a batch is a tuple of their rows.

    >>> cases = TensorCases(torch.arange(6).reshape(3, 2), torch.tensor([7, 8, 9]))
    >>> cases.collate([2, 0])
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


class ListCases:
    """Items of any kind, and a function that makes a batch of some: for what must be padded.

    >>> cases = ListCases([torch.ones(2), torch.ones(3)], torch.nn.utils.rnn.pad_sequence)
    >>> cases.collate([0, 1]).shape
    torch.Size([3, 2])
    """

    def __init__(self, items: Sequence[Any], collate: Callable[[list[Any]], Batch]) -> None:
        self.items, self._collate = items, collate

    def __len__(self) -> int:
        return len(self.items)

    def collate(self, indices: list[int]) -> Batch:
        return self._collate([self.items[i] for i in indices])


def batches(
    count: int, size: int, *, seed: int, epoch: int, drop_last: bool = False
) -> Iterator[list[int]]:
    """All of `count` cases once, shuffled by (seed, epoch) and nothing else, `size` at a time.

    >>> [sorted(batch) for batch in batches(3, 8, seed=0, epoch=1)]
    [[0, 1, 2]]
    """
    # Mixed, as neighbouring seeds must not share epochs: (0, 1) and (1, 0) are different orders.
    mixed = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mixed))
    for batch in order.split(size):
        if len(batch) == size or not drop_last:
            yield batch.tolist()


def collate(cases: Cases, indices: list[int], batch: list[int]) -> Batch:
    """Those cases of a batch that a process takes."""
    if isinstance(cases, SharedCases):
        return cases.collate_share(indices, batch)
    return cases.collate(indices)


def move(batch: Batch, device: torch.device | str) -> Batch:
    """The batch with every tensor on a device; what is no tensor stays as it is."""
    return pytree.tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), batch)
