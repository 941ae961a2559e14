"""Differentiable exchange of states and of the last tokens of a shard between ranks.

Gradients are those of the sum of all ranks' losses.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from eattn.ops import State
from eattn.ops.state import shift_decay

Part = Literal["before", "all"]  # the ranks before this one, or all ranks


def merge_ranks(
    own: State,
    parts: tuple[Part, ...],
    group: dist.ProcessGroup | None,
    *,
    begins: bool = False,
    continues: bool = True,
) -> list[State]:
    """Merge the states of the ranks before this one or of all ranks, one state for each part.

    Parameters
    ----------
    own : State
        State of this rank's last sequence.
    parts : tuple of {"before", "all"}
        Ranks to merge.
    group : ProcessGroup or None
        Ranks that take part.
    begins : bool, default False
        Whether the last sequence of this rank begins on this rank.
    continues : bool, default True
        Whether the first sequence of this rank continues from earlier ranks.

    Returns
    -------
    states : list of State
    """
    flat = _Exchange.apply(own.s, own.z, own.shift, (begins, continues), parts, group)
    if own.expansion.wide:  # the exchange has the memory order of few terms; see `empty_sums`
        flat = tuple(x.contiguous() for x in flat)
    return [State(flat[i], flat[i + 1], flat[i + 2], own.expansion) for i in range(0, len(flat), 3)]


class _Exchange(torch.autograd.Function):
    """All-gather states and merge them; the backward all-gathers the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        s: Tensor,
        z: Tensor,
        shift: Tensor,
        flags: tuple[bool, bool],
        parts: tuple[Part, ...],
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, ...]:
        states, gathered = _gather([s.mT, z.mT, shift.unsqueeze(1)], flags, group)
        all_s, all_z, all_shift = states
        ctx.joins = [_joins(part, *gathered) for part in parts]
        ctx.group, ctx.rank = group, dist.get_rank(group)
        out = []
        for joins in ctx.joins:
            joined = joins[ctx.rank].view(-1, 1, 1, 1)
            shifts = torch.where(joined, all_shift, torch.inf)  # [W, B, 1, D]
            least = shifts.amin(0)
            decay = shift_decay(shifts, least)
            # torch.where rather than a product with 0, which would let NaN of later ranks through.
            sums = ((torch.where(joined, x, 0) * decay).sum(0).mT for x in (all_s, all_z))
            out += [*sums, least.squeeze(1)]
        ctx.save_for_backward(shift, *out[2::3])
        ctx.mark_non_differentiable(*out[2::3])
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        shift, *merged = ctx.saved_tensors
        sent = []
        for i, least in enumerate(merged):
            gs, gz, _ = grads[3 * i : 3 * i + 3]
            sent += [gs.mT, gz.mT, least.unsqueeze(1)]
        received, _ = _gather(sent, (False, True), ctx.group)
        ds, dz = torch.zeros_like(grads[0].mT), torch.zeros_like(grads[0].mT)
        for i, joins in enumerate(ctx.joins):
            all_gs, all_gz, all_least = received[3 * i : 3 * i + 3]
            # Each rank that merged this rank's state rescaled it to its own smallest shift.
            joined = joins[:, ctx.rank].view(-1, 1, 1, 1)
            decay = shift_decay(shift.unsqueeze(1), all_least)
            ds += (torch.where(joined, all_gs, 0) * decay).sum(0)
            dz += (torch.where(joined, all_gz, 0) * decay).sum(0)
        return ds.mT, dz.mT, None, None, None, None


def _gather(
    tensors: list[Tensor], flags: tuple[bool, bool], group: dist.ProcessGroup | None
) -> tuple[list[Tensor], list[Tensor]]:
    """All-gather tensors [B, n, D] to [W, B, n, D] and flags to [W], in one collective."""
    B, _, D = tensors[0].shape
    sizes = [x.shape[1] for x in tensors]
    sent = torch.cat([torch.cat(tensors, 1).reshape(-1), tensors[0].new_tensor(flags)])
    received = sent.new_empty(dist.get_world_size(group), len(sent))
    dist.all_gather(list(received.unbind()), sent, group=group)
    states, all_flags = received[:, : -len(flags)], received[:, -len(flags) :].bool()
    return list(states.view(-1, B, sum(sizes), D).split(sizes, 2)), list(all_flags.unbind(1))


def _joins(part: Part, begins: Tensor, continues: Tensor) -> Tensor:
    """Return a bool matrix [W, W] that is True at (i, j) if rank i merges the state of rank j.

    For "before", these are the ranks before i, back to the rank on which the first sequence of rank
    i begins.
    """
    W = len(begins)
    if part == "all":
        return begins.new_ones(W, W)
    count = torch.cat([begins.new_zeros(1, dtype=torch.int64), begins.cumsum(0)])
    # Number of ranks strictly between j and i on which a sequence begins.
    between = count[:-1].unsqueeze(1) - count[1:]
    earlier = begins.new_ones(W, W).tril(-1)
    return earlier & (between == 0) & continues.unsqueeze(1)


def halo(tail: Tensor, count: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Return the last n tokens before this shard, and the last n tokens of the whole sequence.

    If shards are shorter than n, the tokens come from several ranks.

    Parameters
    ----------
    tail : Tensor, shape (B, n, D)
        Last n tokens of this shard, padded with 0 in front if it has fewer.
    count : int Tensor, shape (B,)
        Number of tokens in `tail` that are not padding.
    group : ProcessGroup or None
        Ranks that take part.

    Returns
    -------
    before, last : Tensor, shape (B, n, D)
    """
    n, rank = tail.shape[1], dist.get_rank(group)
    counted = count.view(-1, 1, 1).to(tail.dtype).expand(-1, 1, tail.shape[2])
    gathered = _Gather.apply(torch.cat([tail, counted], 1), group)  # [W, B, n + 1, D]
    position = torch.arange(n, device=tail.device)
    last = before = torch.zeros_like(tail)
    for number, each in enumerate(gathered.unbind()):
        shift = each[:, n, :1].detach().round().long()  # [B, 1]
        padded = torch.cat([last, torch.zeros_like(last)], 1)
        at = (position + shift).unsqueeze(-1).expand_as(last)
        last = padded.gather(1, at) + each[:, :n]
        # torch.where keeps every rank in the graph, as all ranks must take part in the backward.
        earlier = torch.tensor(number < rank, device=tail.device)
        before = torch.where(earlier, last, before)
    return before, last


class _Gather(torch.autograd.Function):
    """All-gather a tensor to [W, ...]; the backward sums the gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        received = x.new_empty(dist.get_world_size(group), *x.shape)
        dist.all_gather(list(received.unbind()), x.contiguous(), group=group)
        return received

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None
