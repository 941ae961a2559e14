"""Context in which the input of every layer is one shard of a sequence."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from eattn.distributed.agreement import Result, agree

# Global rather than thread-local: autograd may recompute a checkpointed layer in another thread.
_current: "Shard | None" = None


@dataclass(frozen=True)
class Shard:
    """One rank's shard of a sequence, or of several packed sequences.

    The ranks of the process group hold consecutive shards, in rank order.

    Parameters
    ----------
    group : ProcessGroup, optional
        Ranks that share the sequence; the default group if omitted.
    before : int, default 0
        Number of tokens of this shard's first sequence that earlier ranks hold.
    check : bool, default True
        Compare the inputs of all ranks before computing, in small messages, and raise
        `DisagreementError` on every rank if they differ. Without it, a mismatch hangs.

    Examples
    --------
    On every rank, for tokens x [B, L, D]::

        own, shard = Shard(group).rows(L)
        x_own = x[:, own]
    """

    group: dist.ProcessGroup | None = None
    before: int = 0
    check: bool = True

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return dist.get_world_size(self.group)

    def span(self, L: int) -> tuple[int, int]:
        """Return start and stop of this rank's shard if L tokens are split evenly."""
        return self.rank * L // self.size, (self.rank + 1) * L // self.size

    def rows(self, L: int) -> "tuple[slice, Shard]":
        """Split rows of L tokens evenly.

        Parameters
        ----------
        L : int
            Length of the whole sequence.

        Returns
        -------
        own : slice
            Tokens of this rank.
        shard : Shard
            This shard with `before` set.
        """
        first, last = self.span(L)
        return slice(first, last), replace(self, before=first)

    def packed(self, cu_seqlens: Tensor) -> "tuple[slice, Tensor, Shard]":
        """Split packed sequences evenly.

        Parameters
        ----------
        cu_seqlens : int32 Tensor, shape (n + 1,)
            Offsets of all sequences.

        Returns
        -------
        own : slice
            Tokens of this rank.
        offsets : int32 Tensor, shape (m + 1,)
            Offsets of the sequences within this rank's tokens.
        shard : Shard
            This shard with `before` set.
        """
        first, last = self.span(int(cu_seqlens[-1]))
        inside = cu_seqlens[(cu_seqlens > first) & (cu_seqlens < last)]
        ends = cu_seqlens.new_tensor([first, last])
        offsets = torch.cat([ends[:1], inside, ends[1:]]) - first
        start = int(cu_seqlens[cu_seqlens <= first].max())
        return slice(first, last), offsets, replace(self, before=first - start)

    def agree(self, work: Callable[[], tuple[Result, Mapping[str, int]]]) -> Result:
        """Return the result of `work` after comparing its properties; see `agreement.agree`."""
        return agree(work, self.group) if self.check else work()[0]

    @contextmanager
    def active(self) -> "Iterator[Shard]":
        """Make this the current shard within the context; see `sequence_parallel`."""
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

    Inside the context, every input [B, L, D] is this rank's shard of a sequence that is split over
    the ranks of `group` in rank order. Element-wise attention (ea-6, ea-q17, …), the short
    convolution before it and the positions of the language models take the other ranks into
    account and return the values and gradients of the whole sequence; other mixers raise. Every
    rank must run the same layers. A group of one rank changes nothing.

    Gradients are those of the sum of all ranks' losses. Sum the gradients of the parameters over
    the group, or use DDP or FSDP, which average them.

    With gradient checkpointing, keep the context open around `backward()`, which runs layers again.

    Parameters
    ----------
    group : ProcessGroup, optional
        Ranks that share the sequence; the default group if omitted.
    before : int, default 0
        Number of tokens of this rank's first sequence that earlier ranks hold. `Shard.rows` and
        `Shard.packed` compute it.
    check : bool, default True
        Compare the inputs of all ranks in each layer, and raise `DisagreementError` on every rank
        if they differ.

    Yields
    ------
    shard : Shard
        The current shard.

    Raises
    ------
    RuntimeError
        If torch.distributed is not initialised.

    Examples
    --------
    On every rank, for x [B, L, D] and a causal model::

        own, shard = Shard(group).rows(L)
        with sequence_parallel(group, before=shard.before):
            model(x[:, own]).square().sum().backward()
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed must be initialised before sequence_parallel:"
            " start with torchrun and call init_process_group"
        )
    with Shard(group, before, check).active() as shard:
        yield shard


def current_shard() -> Shard | None:
    """Return the shard of the enclosing `sequence_parallel`; None outside or with a single rank."""
    return _current


def check_not_sharded(what: str) -> None:
    """Raise if `what` runs inside `sequence_parallel`, where it would see only a shard."""
    if _current is not None:
        raise ValueError(
            f"{what} cannot run inside sequence_parallel over {_current.size} ranks:"
            " use element-wise attention with an expansion (ea-6, ea-q17, …)"
        )
