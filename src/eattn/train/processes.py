"""Train in several processes, started by `torchrun`: each takes its share of every batch.

By default every process holds the whole model (DDP). With `fsdp` each keeps a shard of every
weight, its gradient and its optimizer state (FSDP2). With `sequence_parallel` neighbouring
processes share the tokens of a batch. The three can be combined.
"""

import copy
import functools
import gc
import importlib
import itertools
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils import _pytree as pytree

from eattn.distributed import Shard
from eattn.train.task import Batch

T = TypeVar("T")
# Messages of torch when the other end of a connection is gone.
LOST = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed out|socket|remote process"
    r"|nccl.*(timeout|remote)",  # other errors of nccl are about this process
    re.I,
)


@dataclass(frozen=True)
class Processes:
    """The processes of a run and the rank of this one; by default a single process.

    Examples
    --------
    >>> Processes().share([3, 1, 2]), Processes(1, 2).share([3, 1, 2])
    ([3, 1, 2], [1])
    >>> Processes(1, 4, sequence=2).share([3, 1, 2])  # same as process 0: they share tokens
    [3, 2]
    """

    rank: int = 0
    count: int = 1
    sequence: int = 1  # neighbouring processes that share the tokens of a batch
    fsdp: bool = False
    shard: Shard | None = None  # of a sequence; None unless sequence > 1

    @classmethod
    def current(cls) -> "Processes":
        """Return those of the `torchrun` block, or of torch's default process group, if any."""
        found = _CURRENT.get()
        if found is not None:
            return found
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Return whether this process writes and logs."""
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """Return a seed of this process, so that dropout differs between processes."""
        if self.first:
            return seed
        return int(np.random.SeedSequence([seed, self.rank]).generate_state(1)[0])

    def share(self, indices: list[int]) -> list[int]:
        """Return this process's samples of a batch; a small batch may leave none."""
        return indices[self.rank // self.sequence :: self.count // self.sequence]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, on every rank."""
        held = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(held, value)
        return held

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0, on every rank."""
        held = [value]
        if self.count > 1:
            dist.broadcast_object_list(held, src=0)
        return held[0]

    def on_every_rank(self, work: Callable[[], T]) -> T:
        """Return the result of `work` on this rank; if it raises on one rank, all ranks raise."""
        if self.count == 1:
            return work()
        result, error = _attempt(work)
        for each in self.gather(error):
            if each is not None:
                raise error or each
        return cast(T, result)

    def on_first_rank(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 only; every rank returns its result or raises its error."""
        if self.count == 1:
            return work()
        result, error = self.broadcast(_attempt(work) if self.first else (None, None))
        if error is not None:
            raise error
        return cast(T, result)

    def evaluate(self, work: Callable[[], T]) -> T:
        """Evaluate on rank 0 and broadcast; on every rank if weights or sequences are sharded."""
        if self.fsdp or self.shard is not None:
            return self.broadcast(work())
        return self.on_first_rank(work)

    def distribute(
        self, model: nn.Module, loss: Callable[[nn.Module, Batch], Any], device: torch.device
    ) -> tuple[nn.Module, Callable[[Batch], Any]]:
        """Return the model to train, and its loss as a function of a batch.

        All ranks start with the weights of rank 0. With FSDP the model is a sharded copy.
        """
        if self.fsdp:
            model = _shard(model, device, init_device_mesh(device.type, (self.count,)))
        else:
            model = model.to(device)
        if self.fsdp or self.count == 1:
            return model, lambda batch: loss(model, batch)
        ddp = nn.parallel.DistributedDataParallel(_Loss(model, loss))
        ddp.broadcast_buffers = False  # `train` does so after the backward, which may change them
        return model, ddp

    def average(self, loss: Tensor, weight: float) -> tuple[Tensor, Tensor, float]:
        """Return the loss to differentiate on this rank, and the batch's mean loss and weight.

        DDP and FSDP average gradients over ranks, so a share of greater weight is scaled up.
        """
        if self.count == 1:
            return loss, loss.detach(), weight
        value = loss.detach().double() if weight else 0.0  # 0 times NaN would be NaN
        sums = loss.new_tensor([weight, weight], dtype=torch.float64)
        sums[0] *= value
        dist.all_reduce(sums)
        total = float(sums[1])
        if not total:
            return loss * 0.0, sums[0], total
        return loss * (self.count * weight / total), sums[0] / total, total


_BLOCKS = itertools.count()
_CURRENT: ContextVar[Processes | None] = ContextVar("processes", default=None)


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result and the error of `work`; one that cannot be sent becomes a RuntimeError."""
    try:
        return work(), None
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # pickling runs code of the error's class
            return None, RuntimeError(f"{type(error).__name__}: {error}")
        return None, error


class _Loss(nn.Module):
    """A loss as a module, so that DDP sees one forward whatever the loss calls."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Batch], Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Any:
        return self.loss(self.model, batch)


# ---- sharded weights (FSDP2) ---------------------------------------------------------------------


def _shard(model: nn.Module, device: torch.device, mesh: DeviceMesh) -> nn.Module:
    """Return a copy of rank 0's model with a shard of every weight on this rank.

    A module with the attribute `fsdp_methods` is a unit: it is gathered while one of these methods
    or its forward runs. All other weights are gathered from the forward to the backward.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    model = copy.deepcopy(model)
    units = [m for m in model.modules() if hasattr(m, "fsdp_methods")]
    for unit in [*units, model]:  # one by one: the device never holds the whole model
        for tensor in _unsharded(unit):
            tensor.data = tensor.data.to(device)
        broadcast_tensors(unit)
        fully_shard(unit, mesh=mesh)
    for unit in units:
        for method in cast(Any, unit).fsdp_methods:
            register_fsdp_forward_method(unit, method)
    return model


def _unsharded(model: nn.Module, *, parameters: bool = True) -> list[Tensor]:
    held = [*(model.parameters() if parameters else ()), *model.buffers()]
    return [tensor for tensor in held if not hasattr(tensor, "full_tensor")]


def broadcast_tensors(model: nn.Module, *, parameters: bool = True) -> None:
    """Give all ranks the unsharded parameters and buffers of rank 0, or its buffers alone."""
    for tensor in _unsharded(model, parameters=parameters):
        dist.broadcast(tensor.detach(), src=0)


def reshard(model: nn.Module) -> None:
    """Free gathered weights; a forward without a backward keeps the outermost ones."""
    for module in model.modules():
        if callable(reshard := getattr(module, "reshard", None)):
            reshard()


def gather_shards(tree: Any, *, keep: bool = True) -> Any:
    """Replace sharded tensors by whole ones on the CPU, or by None unless `keep`.

    Every rank must call this, also those that do not need the result.
    """

    def gather(x: Any) -> Any:
        if not hasattr(x, "full_tensor"):
            return x
        full = x.full_tensor()
        return full.cpu() if keep else None

    return pytree.tree_map_only(Tensor, gather, tree)


def shard_like(full: Any, like: Any) -> Any:
    """Shard a whole tensor as `like` is; return any other value as it is."""
    if not isinstance(full, Tensor) or not hasattr(like, "full_tensor") or full.shape != like.shape:
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements)


def shard_weights(full: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Shard a state dict of whole tensors as the model's own is."""
    like = model.state_dict()
    return {name: shard_like(x, like.get(name)) for name, x in full.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a state dict of whole tensors into an optimizer whose parameters may be sharded."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        number: {key: shard_like(x, params[number]) for key, x in held.items()}
        for number, held in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})


@torch.no_grad()
def copy_weights(model: nn.Module, to: nn.Module) -> None:
    """Copy the weights of a sharded model to the model that it is a copy of."""
    target = to.state_dict()
    for name, x in model.state_dict().items():
        if isinstance(x, Tensor):  # one by one: the device never holds the whole model
            target[name].copy_(gather_shards(x))


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore harmless warnings of torch.

    FSDP2 warns about views, which are not modified here. DDP warns about gradients whose strides
    differ from those of the weight, even if only along an axis of length 1.
    """
    with warnings.catch_warnings():
        for message in ("FSDP2-wrapped module", "Grad strides do not match bucket view strides"):
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield


# ---- process group -------------------------------------------------------------------------------


@contextmanager
def torchrun(
    *, fsdp: bool = False, sequence_parallel: int = 1, timeout: timedelta | None = None
) -> Iterator[Processes]:
    """Share the work of `train` inside the block between the processes that torchrun started.

    Processes communicate by gloo on CPUs and by nccl on GPUs, one GPU per process; nccl has not
    been run.

    Parameters
    ----------
    fsdp : bool, default False
        Shard every weight over the processes.
    sequence_parallel : int, default 1
        Number of processes that share the tokens of a batch.
    timeout : timedelta, optional
        How long to wait for another process; by default torch's 30 minutes.

    Raises
    ------
    ConnectionError
        If another process is lost.
    """
    own = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if own:
        _open(timeout)
    try:
        processes = _arrange(fsdp, sequence_parallel)
        token = _CURRENT.set(processes)
        try:
            yield processes
        except RuntimeError as error:
            if processes.count > 1 and LOST.search(str(error)):
                reason = str(error).strip().partition("\n")[0]
                raise ConnectionError(
                    f"process {processes.rank} of {processes.count} lost another one, which was"
                    f" killed or could not be reached ({reason}); the same command resumes from"
                    " the last checkpoint, if there is one"
                ) from error
            raise
        finally:
            _CURRENT.reset(token)
    except BaseException:
        # With gloo this wakes the others. nccl might wait for them here, and they for this process.
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


def _open(timeout: timedelta | None) -> None:
    """Make the default process group of the processes that torchrun started."""
    # Imported after the group exists, as DDP does, its default arguments would refer to the group.
    importlib.import_module("torch.distributed.nn")
    number = int(os.environ["LOCAL_RANK"])
    if number < torch.cuda.device_count():
        torch.cuda.set_device(number)
    store, rank, count = _rendezvous()
    # Without a prefix a second block would read the addresses that the first left in the store.
    store = dist.PrefixStore(f"block {next(_BLOCKS)}", store)
    # A run may use the CPU on a machine with GPUs, too.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=count)


@functools.cache
def _rendezvous() -> tuple[dist.Store, int, int]:
    """Return torchrun's store, rank and count; it can be asked only once."""
    found: tuple[dist.Store, int, int] = next(dist.rendezvous("env://"))
    return found


def _arrange(fsdp: bool, sequence: int) -> Processes:
    """Arrange the processes of the default group in a mesh of [data, sequence]."""
    started = dist.is_available() and dist.is_initialized()
    rank, count = (dist.get_rank(), dist.get_world_size()) if started else (0, 1)
    if sequence < 1 or count % sequence:
        raise ValueError(
            f"sequence_parallel must divide the number of processes, {count}, got {sequence}:"
            f" torchrun --nproc-per-node {max(2, sequence)} starts more"
        )
    shard = None
    if sequence > 1:
        # A device type of the default group, so that its subgroups support the same devices.
        device = "cpu" if "cpu:" in dist.get_backend_config() else "cuda"
        names = ("data", "sequence")
        mesh = init_device_mesh(device, (count // sequence, sequence), mesh_dim_names=names)
        shard = Shard(mesh["sequence"].get_group(), check=False)  # all ranks run one program
    return Processes(rank, count, sequence, fsdp and count > 1, shard)
