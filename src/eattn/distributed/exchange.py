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
    flags = begins, continues
    flat = _Exchange.apply(own.s, own.z, own.shift, own.log_decay, own.order, flags, parts, group)
    if own.expansion.wide:  # the exchange has the memory order of few terms; see `empty_sums`
        flat = tuple(x.contiguous() for x in flat)
    size = len(flat) // len(parts)  # number of tensors of a state
    return [
        State(flat[i], flat[i + 1], flat[i + 2], own.expansion, flat[i + 3] if size > 3 else None)
        for i in range(0, len(flat), size)
    ]


class _Exchange(torch.autograd.Function):
    """All-gather states and merge them; the backward all-gathers the gradients.

    With decay, the state of a rank decays by the log decays of the merged ranks after it. The
    backward then also sums the gradients of the log decays, in a second message.
    """

    @staticmethod
    def forward(
        ctx: Any,
        s: Tensor,
        z: Tensor,
        shift: Tensor,
        log_decay: Tensor | None,
        order: int | None,
        flags: tuple[bool, bool],
        parts: tuple[Part, ...],
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, ...]:
        own = [shift] if log_decay is None else [shift, log_decay]
        states, gathered = _gather([s.mT, z.mT, *(x.unsqueeze(1) for x in own)], flags, group)
        all_s, all_z, all_shift, *decays = states
        ctx.joins = [_joins(part, *gathered) for part in parts]
        ctx.group, ctx.rank = group, dist.get_rank(group)
        out = []
        for joins in ctx.joins:
            mine = joins[ctx.rank]
            joined = mine.view(-1, 1, 1, 1)
            shifts = torch.where(joined, all_shift, torch.inf)  # [W, B, 1, D]
            lost, least, total = None, shifts.amin(0), []
            for log_decays in decays:
                lost = _sums(log_decays, mine & _later(mine))  # by the merged ranks after each
                if order is not None:
                    least = (shifts.square() - lost).sqrt().amin(0)
                total = [_sums(log_decays, mine.unsqueeze(0))[0].squeeze(1)]
            kept = torch.where(joined, shift_decay(shifts, least, lost), 0)
            # torch.where rather than a product with 0, which would let NaN of later ranks through.
            sums = ((torch.where(joined, x, 0) * kept).sum(0).mT for x in (all_s, all_z))
            out += [*sums, least.squeeze(1), *total]
        merged_shifts = out[2 :: len(out) // len(parts)]
        ctx.save_for_backward(shift, *merged_shifts, *([s, z, decays[0].clone()] if decays else []))
        ctx.mark_non_differentiable(*merged_shifts)
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        count = len(ctx.joins)
        size = len(grads) // count
        shift, *merged = ctx.saved_tensors
        merged, decayed = merged[:count], merged[count:]
        sent = []
        for i, least in enumerate(merged):
            gs, gz, _, *total = grads[size * i : size * (i + 1)]
            sent += [gs.mT, gz.mT, least.unsqueeze(1), *(x.unsqueeze(1) for x in total)]
        received, _ = _gather(sent, (False, True), ctx.group)
        ds, dz = torch.zeros_like(grads[0].mT), torch.zeros_like(grads[0].mT)
        through, direct = [], []  # gradients of the log decays: of all ranks, of this rank
        for i, joins in enumerate(ctx.joins):
            all_gs, all_gz, all_least, *totals = received[size * i : size * (i + 1)]
            # Each rank that merged this rank's state rescaled it to its own smallest shift.
            mine, after = joins[:, ctx.rank], joins & _later(joins[0])[ctx.rank]
            joined = mine.view(-1, 1, 1, 1)
            lost = _sums(decayed[2], after) if decayed else None
            kept = torch.where(joined, shift_decay(shift.unsqueeze(1), all_least, lost), 0)
            moved_s, moved_z = (torch.where(joined, x, 0) * kept for x in (all_gs, all_gz))
            ds += moved_s.sum(0)
            dz += moved_z.sum(0)
            if decayed:
                s, z, _ = decayed
                each = (moved_s * s.mT + moved_z * z.mT).sum(2, keepdim=True)
                through.append(_sums(each, (after & mine.unsqueeze(1)).mT))
                direct.append(_sums(totals[0], mine.unsqueeze(0))[0])
        dg = None
        if decayed:
            of_all = torch.stack(through).sum(0)
            dist.all_reduce(of_all, group=ctx.group)
            dg = (of_all[ctx.rank] + sum(direct)).squeeze(1)
        return ds.mT, dz.mT, None, dg, None, None, None, None


def _later(ranks: Tensor) -> Tensor:
    """Return a bool matrix [W, W] that is True at (i, j) if rank j is after rank i."""
    return ranks.new_ones(len(ranks), len(ranks)).triu(1)


def _sums(x: Tensor, masks: Tensor) -> Tensor:
    """Sum x [W, B, 1, D] over the ranks of each mask, bool [n, W]; return [n, B, 1, D].

    Ranks outside a mask may hold NaN or infinity.
    """
    return torch.stack([torch.where(mask.view(-1, 1, 1, 1), x, 0).sum(0) for mask in masks])


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
