"""Exchange between ranks, with gradients: states, and the last few tokens of a shard.

Every gradient is that of the sum of all ranks' losses.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from eattn.ops import State
from eattn.ops.state import shift_decay

Part = Literal["before", "all"]  # of the ranks, in the order of the sequence


def merged(
    own: State,
    parts: tuple[Part, ...],
    group: dist.ProcessGroup | None,
    *,
    begins: bool = False,
    continues: bool = True,
) -> list[State]:
    """The states of the ranks before this one, or of all, as one."""
    flat = _Exchange.apply(own.s, own.z, own.shift, (begins, continues), parts, group)
    return [State(flat[i], flat[i + 1], flat[i + 2], own.expansion) for i in range(0, len(flat), 3)]


class _Exchange(torch.autograd.Function):
    """One all-gather of states, and one of gradients in the backward."""

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
            mine = joins[ctx.rank].view(-1, 1, 1, 1)
            each = torch.where(mine, all_shift, torch.inf)  # [W, B, 1, D]
            least = each.amin(0)
            kept = shift_decay(each, least)
            # Of a later rank nothing may come in, not even a NaN.
            sums = ((torch.where(mine, x, 0) * kept).sum(0).mT for x in (all_s, all_z))
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
            # Whoever merged this rank's state moved it to the shift that was least there.
            taken = joins[:, ctx.rank].view(-1, 1, 1, 1)
            kept = shift_decay(shift.unsqueeze(1), all_least)
            ds += (torch.where(taken, all_gs, 0) * kept).sum(0)
            dz += (torch.where(taken, all_gz, 0) * kept).sum(0)
        return ds.mT, dz.mT, None, None, None, None


def _gather(
    tensors: list[Tensor], flags: tuple[bool, bool], group: dist.ProcessGroup | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Every rank's tensors [B, n, D] as [W, B, n, D], and its flags as [W], in one collective."""
    B, _, D = tensors[0].shape
    sizes = [x.shape[1] for x in tensors]
    told = tensors[0].new_tensor(flags)
    sent = torch.cat([torch.cat(tensors, 1).reshape(-1), told])
    received = sent.new_empty(dist.get_world_size(group), len(sent))
    dist.all_gather(list(received.unbind()), sent, group=group)
    states, told = received[:, : -len(flags)], received[:, -len(flags) :].bool()
    return list(states.view(-1, B, sum(sizes), D).split(sizes, 2)), list(told.unbind(1))


def _joins(part: Part, begins: Tensor, continues: Tensor) -> Tensor:
    """[W, W]: whether rank j's state joins what rank i starts from.

    The ranks before i join back to the one in which the sequence begins that i goes on with.
    """
    W = len(begins)
    if part == "all":
        return begins.new_ones(W, W)
    count = torch.cat([begins.new_zeros(1, dtype=torch.int64), begins.cumsum(0)])
    # Of the ranks j + 1 ... i - 1, how many begin one.
    between = count[:-1].unsqueeze(1) - count[1:]
    earlier = begins.new_ones(W, W).tril(-1)
    return earlier & (between == 0) & continues.unsqueeze(1)


def halo(tail: Tensor, count: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """The last n tokens before this slice, and those of the whole: [B, n, D] each.

    Every rank gives its own last n tokens `tail` [B, n, D], 0 in front where it has but `count` [B]
    of them. A short slice lets those of the ranks before it through.
    """
    n, rank = tail.shape[1], dist.get_rank(group)
    counted = count.view(-1, 1, 1).to(tail.dtype).expand(-1, 1, tail.shape[2])
    every = _Gather.apply(torch.cat([tail, counted], 1), group)  # one message, [W, B, n + 1, D]
    place = torch.arange(n, device=tail.device)
    last = before = torch.zeros_like(tail)
    for number, each in enumerate(every.unbind()):
        shift = each[:, n, :1].detach().round().long()  # [B, 1]
        room = torch.cat([last, torch.zeros_like(last)], 1)
        at = (place + shift).unsqueeze(-1).expand_as(last)
        last = room.gather(1, at) + each[:, :n]
        # All ranks in all graphs: the backward of the message is a message, too.
        earlier = torch.tensor(number < rank, device=tail.device)
        before = torch.where(earlier, last, before)
    return before, last


class _Gather(torch.autograd.Function):
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
