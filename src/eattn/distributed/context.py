"""Sequence parallelism as an ambient context: inside it, every input is one shard of a sequence."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from eattn.distributed.agreement import Result, agree

# One per process, not per thread: autograd may recompute a checkpointed layer in another thread.
_current: "Shard | None" = None


@dataclass(frozen=True)
class Shard:
    """This rank's part of a sequence, or of several packed ones, spread over a process group.

    Ranks hold consecutive parts in the order of their numbers.

    Parameters
    ----------
    group : ProcessGroup, optional
        Ranks that share the sequence; None is the default group.
    before : int, default 0
        Tokens of this shard's first sequence that earlier ranks hold; 0 where it begins here.
    check : bool, default True
        Compare the inputs of all ranks before computing, in a few small messages, and raise a
        `DisagreementError` on every rank if they differ. Without it, ranks that disagree hang.
    """

    group: dist.ProcessGroup | None = None
    before: int = 0
    check: bool = True

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    def span(self, L: int) -> tuple[int, int]:
        """Return the first token of this rank's share of L tokens, and the first after it."""
        return self.rank * L // self.size, (self.rank + 1) * L // self.size

    def rows(self, L: int) -> "tuple[slice, Shard]":
        """Split rows of L tokens evenly: this rank's slice, and the shard that describes it."""
        first, last = self.span(L)
        return slice(first, last), replace(self, before=first)

    def packed(self, cu_seqlens: Tensor) -> "tuple[slice, Tensor, Shard]":
        """Split packed sequences evenly: this rank's slice, the offsets in it, and its shard."""
        first, last = self.span(int(cu_seqlens[-1]))
        inside = cu_seqlens[(cu_seqlens > first) & (cu_seqlens < last)]
        ends = cu_seqlens.new_tensor([first, last])
        offsets = torch.cat([ends[:1], inside, ends[1:]]) - first
        begun = int(cu_seqlens[cu_seqlens <= first].max())
        return slice(first, last), offsets, replace(self, before=first - begun)

    def agree(self, work: Callable[[], tuple[Result, Mapping[str, int]]]) -> Result:
        """Return the result of `work`, and raise if its facts differ; see `agreement.agree`."""
        return agree(work, self.group) if self.check else work()[0]

    @contextmanager
    def active(self) -> "Iterator[Shard]":
        """Make this the current shard; see `sequence_parallel`."""
        global _current
        outer, _current = _current, self if self.size > 1 else None
        try:
            yield self
        finally:
            _current = outer


@contextmanager
def sequence_parallel(
    group: dist.ProcessGroup | None = None, *, before: int = 0, check: bool = True
) -> Iterator[Shard]:
    """Run layers and language models on this rank's shard of a sequence.

    Inside the context every input [B, L, D] is the part that this rank holds of a sequence that
    is spread over the ranks of `group` in order. Element-wise attention (ea-6, ea-q17, …), the
    short convolution before it and the positions of the language models take the other ranks into
    account, and give the values and gradients of the whole sequence; other mixers raise. Every
    rank must run the same layers. A group of one rank changes nothing.

    The gradient is that of the sum of all ranks' losses: sum the gradients of the parameters over
    the group, or use DDP or FSDP, which average them.

    With gradient checkpointing, layers run again during the backward: keep the context open
    around `backward()`, too.

    Parameters
    ----------
    group : ProcessGroup, optional
        Ranks that share the sequence; None is the default group.
    before : int, default 0
        Tokens of this rank's first sequence that earlier ranks hold; 0 where it begins here.
        `Shard.rows` and `Shard.packed` compute it.
    check : bool, default True
        Compare the inputs of all ranks in each layer, and raise on all of them if they differ.

    Yields
    ------
    shard : Shard

    Examples
    --------
    On every rank, for x [B, L, D] and a causal model::

        own, shard = Shard(group).rows(L)
        with sequence_parallel(group, before=shard.before):
            model(x[:, own]).square().sum().backward()
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed must be initialised before sequence_parallel"
            " (torchrun, then init_process_group)"
        )
    with Shard(group, before, check).active() as shard:
        yield shard


def current_shard() -> Shard | None:
    """Return the shard of the enclosing `sequence_parallel`; None outside, or with one rank."""
    return _current


def check_not_sharded(what: str) -> None:
    """Raise if `what` runs on a shard: it would take the shard for a whole sequence."""
    if _current is not None:
        raise ValueError(
            f"{what} cannot run inside sequence_parallel over {_current.size} ranks:"
            " element-wise attention as a series can (ea-6, ea-q17, …)"
        )
