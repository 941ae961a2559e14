"""What each process of `eattn bench ranks` does: `python -m paper.bench.rank OPTIONS`, one thread.

All processes do the same in the same order, and the first prints what was found as JSON.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eattn.distributed import Shard
from eattn.nn import TransformerBlock
from paper.bench.measure import Contender, Row, interleave, time_once

CHECKED = 257  # tokens, which no number of ranks but one divides


def main(rank: int, world: int, store: str, work: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    _pin(rank)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    found = WORK[work](**options)
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()  # no rank leaves while another still sends
    dist.destroy_process_group()


def check(dim: int) -> Row:
    """The largest error of what slices give, value and gradients, beside one process."""
    block, x, gy = _material(CHECKED, dim)
    own, shard = Shard(check=False).rows(CHECKED)
    y = train(block, x, gy)
    expected = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    mine = train(block, x[:, own], gy[:, own], shard)
    found = [p.grad for p in block.parameters() if p.grad is not None]
    pairs = [(mine, y[:, own]), *zip(found, expected, strict=True)]
    errors = [(a - b).abs().max() / b.abs().max() for a, b in pairs]
    worst = torch.stack(errors).max()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return {"error": float(worst)}


def steps(length: int, dim: int, budget: float) -> dict[str, Row]:
    """Times of a training step on one sequence: by the first process alone, and by all together."""
    block, x, gy = _material(length, dim)
    own, shard = Shard(check=False).rows(length)
    mine, gmine = x[:, own].contiguous(), gy[:, own].contiguous()
    first = dist.get_rank() == 0
    contenders = {
        "alone": _together(lambda: train(block, x, gy) if first else None),
        "together": _together(lambda: train(block, mine, gmine, shard)),
    }
    once = torch.tensor(sum(time_once(each) for each in contenders.values()))
    dist.broadcast(once, 0)
    rounds = int(min(15, max(3, budget / max(float(once), 1e-9))))
    return {name: vars(times) for name, times in interleave(contenders, rounds=rounds).items()}


def gathers(sizes: list[int], rounds: int) -> dict[str, Row]:
    """Times of an all-gather of so many bytes from each process."""
    contenders = {}
    for size in sizes:
        own = torch.zeros(size, dtype=torch.uint8)
        received = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        calls = max(1, min(50, 2**22 // size))

        def run(own: Tensor = own, received: list[Tensor] = received, calls: int = calls) -> None:
            for _ in range(calls):
                dist.all_gather(received, own)

        contenders[str(size)] = Contender(run, calls=calls, prepare=dist.barrier)
    return {name: vars(times) for name, times in interleave(contenders, rounds=rounds).items()}


def train(block: TransformerBlock, x: Tensor, gy: Tensor, shard: Shard | None = None) -> Tensor:
    """Forward and backward into parameters and input; those of all processes are summed."""
    block.zero_grad()
    x = x.detach().requires_grad_()  # as within a stack of blocks
    with nullcontext() if shard is None else shard.active():
        y: Tensor = block(x)
        y.backward(gy)
    if shard is not None:
        grads = [p.grad for p in block.parameters() if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        parts = flat.split([grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
    return y.detach()


def _together(work: Callable[[], object]) -> Contender:
    """From when all begin to when all are done."""

    def run() -> object:
        found = work()
        dist.barrier()
        return found

    return Contender(run, prepare=dist.barrier)


def _material(length: int, dim: int) -> tuple[TransformerBlock, Tensor, Tensor]:
    torch.manual_seed(0)
    block = TransformerBlock(dim=dim, mixer="ea-6", causal=True)
    x, gy = torch.randn(2, 1, length, dim).unbind()
    return block, x, gy


def _pin(rank: int) -> None:
    """To a core of its own, where there are enough and the system lets it."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if rank < len(cores):
            os.sched_setaffinity(0, {cores[rank]})


WORK: dict[str, Callable[..., Any]] = {"check": check, "steps": steps, "gathers": gathers}

if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
