"""Where a slice lies in the sequence that it was cut from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from eattn.distributed.agreement import agree

Result = TypeVar("Result")


@dataclass(frozen=True)
class Cut:
    """A sequence, or several packed ones, cut into slices, one for each rank of a group in order.

    `before` counts the tokens of this slice's first sequence that earlier ranks hold: 0 where it
    begins here. With `check` the ranks compare what they are about to compute, at the price of a
    few small messages, and disagreement is an error; without it they would wait for each other.
    """

    group: dist.ProcessGroup | None = None  # None: torch's default one
    before: int = 0
    check: bool = True

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def last(self) -> bool:
        """Whether nothing comes after this slice."""
        return self.rank == self.size - 1

    def agree(self, work: Callable[[], tuple[Result, Mapping[str, int]]]) -> Result:
        """What `work` gives, and with it facts that must be the same on all ranks.

        If they differ, or `work` raises on one rank, all ranks raise; unchecked, each by itself.
        """
        done: list[Result] = []

        def facts() -> Mapping[str, int]:
            result, found = work()
            done.append(result)
            return found

        if self.check:
            agree(facts, self.group)
        else:
            facts()
        return done[0]

    def span(self, L: int) -> tuple[int, int]:
        """This rank's share of L tokens: from, to."""
        return self.rank * L // self.size, (self.rank + 1) * L // self.size

    def rows(self, L: int) -> "tuple[slice, Cut]":
        """The same of rows that are cut alike, and the cut that then holds."""
        first, last = self.span(L)
        return slice(first, last), replace(self, before=first)

    def packed(self, cu_seqlens: Tensor) -> "tuple[slice, Tensor, Cut]":
        """This rank's share of packed sequences, the offsets in it, and the cut that then holds."""
        first, last = self.span(int(cu_seqlens[-1]))
        inside = cu_seqlens[(cu_seqlens > first) & (cu_seqlens < last)]
        ends = cu_seqlens.new_tensor([first, last])
        offsets = torch.cat([ends[:1], inside, ends[1:]]) - first
        begun = int(cu_seqlens[cu_seqlens <= first].max())
        return slice(first, last), offsets, replace(self, before=first - begun)
