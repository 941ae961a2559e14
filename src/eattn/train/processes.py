"""One run in several processes, as `torchrun` starts them: each takes its share of every batch.

By default every process holds the whole model (DDP). With `fsdp` each keeps a part of every weight,
its gradient and its optimiser state, and all have the whole only while they use it. With
`sequence_parallel` neighbouring processes share the tokens of a batch. All of it goes together.
"""

import functools
import gc
import importlib
import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from eattn.distributed import DisagreementError, Shard
from eattn.train import sharding
from eattn.train.dataset import Batch
from eattn.train.errors import lost

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, and which one this is; by default it is alone.

    >>> Processes().share([3, 1, 2]), Processes(1, 2).share([3, 1, 2])
    ([3, 1, 2], [1])
    >>> Processes(1, 4, sequence=2).share([3, 1, 2])  # as process 0, with which it shares tokens
    [3, 2]
    """

    rank: int = 0
    count: int = 1
    sequence: int = 1  # neighbours that share the tokens of a batch
    fsdp: bool = False
    tokens: Shard | None = None  # of those neighbours, if there are any

    @classmethod
    def here(cls) -> "Processes":
        """Those of the `torchrun` block, or of torch's default process group, if there is one."""
        found = _HERE.get()
        if found is not None:
            return found
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and shows."""
        return self.rank == 0

    def agree(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """That these, of {what: {name: value}}, are the same in all processes; or all raise."""
        first, *others = self.gather(facts)
        for rank, other in enumerate(others, 1):
            for what, values in first.items():
                for name in values | other[what]:
                    pair = [held[what].get(name, "none") for held in (first, other)]
                    if pair[0] != pair[1]:
                        raise DisagreementError(
                            f"all processes must have the same {what}, got {name} = {pair[0]} in"
                            f" process 0 and {pair[1]} in process {rank}"
                        )

    def seed(self, seed: int) -> int:
        """Of this process: the same dropout in all of them would not be random."""
        if self.first:
            return seed
        return int(np.random.SeedSequence([seed, self.rank]).generate_state(1)[0])

    def share(self, indices: list[int]) -> list[int]:
        """The cases of a batch that this process takes, with those it shares tokens with.

        A small batch leaves none for some.
        """
        return indices[self.rank // self.sequence :: self.count // self.sequence]

    def shard(self, model: nn.Module, device: torch.device) -> nn.Module:
        """What is to be trained: the model itself, or a copy with a part of each weight here."""
        if not self.fsdp:
            return model.to(device)
        return sharding.shard(model, device, init_device_mesh(device.type, (self.count,)))

    def spread(self, model: nn.Module, loss: Callable[[nn.Module, Batch], Any]) -> Any:
        """The loss as a function of a batch, so that all processes have one gradient."""
        if self.count == 1 or self.fsdp:
            return lambda batch: loss(model, batch)
        spread = nn.parallel.DistributedDataParallel(_Loss(model, loss))  # all are now the first's
        spread.broadcast_buffers = False  # `train` does, after the backward that may change them
        return spread

    def weigh(self, loss: Tensor, weight: float) -> tuple[Tensor, Tensor, float]:
        """What to differentiate here, and the mean loss and the weight of the whole batch.

        DDP and FSDP take the mean of the gradients; a share that counts for more must weigh more.
        """
        if self.count == 1:
            return loss, loss.detach(), weight
        value = loss.detach().double() if weight else 0.0  # 0 times NaN would be NaN
        sums = loss.new_tensor([weight, weight], dtype=torch.float64)
        sums[0] *= value
        dist.all_reduce(sums)
        total = float(sums[1])
        if not total:  # nothing counts, so nothing is learnt
            return loss * 0.0, sums[0], total
        return loss * (self.count * weight / total), sums[0] / total, total

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

    def together(self, work: Callable[[], T]) -> T:
        """What `work` gives here; if it raises in any process, all of them raise that."""
        found, wrong = None, None
        try:
            found = work()
        except Exception as error:
            wrong = error
        sent = None if wrong is None else _sendable(wrong)
        told = next((error for error in self.gather(sent) if error is not None), None)
        if told is not None:
            raise wrong or told
        return cast(T, found)

    def once(self, work: Callable[[], T]) -> T:
        """What `work` gives in the first process, or raises there, in all of them."""
        return cast(T, self.tell(self.together(lambda: work() if self.first else None)))

    def judge(self, evaluate: Callable[[], T]) -> T:
        """What the first process finds, in all of them; all evaluate where none could alone."""
        if self.fsdp or self.sequence > 1:
            return cast(T, self.tell(evaluate()))
        return self.once(evaluate)


_BLOCKS = itertools.count()
_HERE: ContextVar[Processes | None] = ContextVar("processes", default=None)


def _sendable(error: Exception) -> Exception:
    """It, or where it cannot be sent to another process, one that says as much."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of whatever kind it is made of
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class _Loss(nn.Module):
    """A loss as a module: whatever it calls of the model, DDP sees one forward."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Batch], Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Any:
        return self.loss(self.model, batch)


@contextmanager
def torchrun(
    *, fsdp: bool = False, sequence_parallel: int = 1, timeout: timedelta | None = None
) -> Iterator[Processes]:
    """A block in which `train` shares its work, where torchrun started more than one process.

    With `fsdp` each trains a part of every weight; with `sequence_parallel` so many share the
    tokens of a batch. On a CPU processes talk by gloo, on cards by nccl, one for each process,
    which has not been run. If one is lost, the others raise a ConnectionError. `timeout` is how
    long they wait for what one does alone; by default torch's, 30 minutes.
    """
    own = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if own:
        _meet(timeout)
    try:
        processes = _arranged(fsdp, sequence_parallel)
        token = _HERE.set(processes)
        try:
            yield processes
        except RuntimeError as error:
            if processes.count > 1 and lost(error):
                reason = str(error).strip().partition("\n")[0]
                raise ConnectionError(
                    f"process {processes.rank} of {processes.count} lost another one, which was"
                    f" killed or could not be reached ({reason}); the same command goes on from"
                    " the last checkpoint, if there is one"
                ) from error
            raise
        finally:
            _HERE.reset(token)
    except BaseException:
        # With gloo this wakes the others. nccl may wait for them here, and they for this process.
        if own and "nccl" not in dist.get_backend_config():
            _close(fsdp)
        raise
    if own:
        _close(fsdp)


def _close(fsdp: bool) -> None:
    """Destroy the default process group, and with it the threads of gloo.

    A thread that frees the last message while Python exits would abort the process. Destroying a
    group joins its threads, but only once nothing refers to the group any more.
    """
    if fsdp:
        from torch.distributed.tensor import debug

        debug._clear_sharding_prop_cache()  # it refers to the mesh, and the mesh to the group
    dist.destroy_process_group()
    gc.collect()


def _meet(timeout: timedelta | None) -> None:
    """Make the default process group of what torchrun started."""
    # Imported after the group exists, as DDP does, its default arguments would refer to the group.
    importlib.import_module("torch.distributed.nn")
    number = int(os.environ["LOCAL_RANK"])
    if number < torch.cuda.device_count():
        torch.cuda.set_device(number)
    store, rank, count = _rendezvous()
    # A second block would read what the first left in the store, and wait for addresses of old.
    store = dist.PrefixStore(f"block {next(_BLOCKS)}", store)
    # A run may be on the CPU where there are cards, too.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=count)


@functools.cache
def _rendezvous() -> tuple[dist.Store, int, int]:
    """Where all processes meet, which they do but once."""
    found: tuple[dist.Store, int, int] = next(dist.rendezvous("env://"))
    return found


def _arranged(fsdp: bool, sequence: int) -> Processes:
    """The processes of the default group, in a mesh of [data, sequence]."""
    started = dist.is_available() and dist.is_initialized()
    rank, count = (dist.get_rank(), dist.get_world_size()) if started else (0, 1)
    if sequence < 1 or count % sequence:
        raise ValueError(
            f"sequence_parallel must divide the number of processes, {count}, got {sequence}:"
            f" torchrun --nproc-per-node {max(2, sequence)} starts more"
        )
    tokens = None
    if sequence > 1:
        names = ("data", "sequence")
        mesh = init_device_mesh(_device_type(), (count // sequence, sequence), mesh_dim_names=names)
        tokens = Shard(mesh["sequence"].get_group(), check=False)  # one program runs on all ranks
    return Processes(rank, count, sequence, fsdp and count > 1, tokens)


def _device_type() -> str:
    """One that the default group can talk on: its parts then can on all that it can."""
    return "cpu" if "cpu:" in dist.get_backend_config() else "cuda"
