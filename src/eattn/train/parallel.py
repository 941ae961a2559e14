"""One run in several processes, as `torchrun` starts them: each takes its share of every batch.

Every process holds the whole model (DDP). `Processes.spread` is the one place that decides so:
what shards weights, or cuts sequences, would take its place.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """The processes of a run, and which one this is; by default it is alone.

    >>> Processes().share([3, 1, 2]), Processes(1, 2).share([3, 1, 2])
    ([3, 1, 2], [1])
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def here(cls) -> "Processes":
        """Those of torch's default process group, if there is one."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the one that judges, writes and shows."""
        return self.rank == 0

    def check(self, smallest: int) -> None:
        """That every batch, of which the smallest has so many cases, has one for each process."""
        if smallest < self.count:
            raise ValueError(
                f"a batch of {smallest} cases is too small for {self.count} processes:"
                " choose a larger batch_size, or drop_last=True if it is the last of an epoch"
            )

    def seed(self, seed: int) -> int:
        """Of this process: the same dropout in all of them would not be random."""
        if self.first:
            return seed
        return int(np.random.SeedSequence([seed, self.rank]).generate_state(1)[0])

    def share(self, indices: list[int]) -> list[int]:
        """The cases of a batch that this process takes."""
        return indices[self.rank :: self.count]

    def spread(self, model: nn.Module) -> nn.Module:
        """What is to be called instead of the model, so that all processes have one gradient."""
        return model if self.count == 1 else nn.parallel.DistributedDataParallel(model)

    def weigh(self, loss: Tensor, weight: float) -> tuple[Tensor, Tensor, float]:
        """What to differentiate here, and the mean loss and the weight of the whole batch.

        DDP takes the mean of the gradients; a share that counts for more must weigh more in it.
        """
        if self.count == 1:
            return loss, loss.detach(), weight
        sums = torch.stack([loss.detach().double() * weight, loss.new_tensor(weight).double()])
        dist.all_reduce(sums)
        total = float(sums[1])
        factor = self.count * weight / total if total else 1.0
        return loss * factor, sums[0] / sums[1], total

    def tell(self, value: Any) -> Any:
        """What the first process has."""
        if self.count == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def gather(self, value: Any) -> Sequence[Any]:
        """What every process has, in all of them."""
        held: list[Any] = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(held, value)
        return held

    def wait(self) -> None:
        """For all others."""
        if self.count > 1:
            self.gather(None)  # on any backend, and without a device to name


@contextmanager
def torchrun() -> Iterator[Processes]:
    """A process group for the block, where torchrun started more than one process; else none.

    On a CPU it is gloo's. With CUDA it is nccl's, a card for each process, which has not been run.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or Processes.here().count > 1:
        yield Processes.here()
        return
    cards = torch.cuda.is_available()
    if cards:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cards else "gloo")
    try:
        yield Processes.here()
    finally:
        dist.destroy_process_group()
