"""One long sequence on two processes.

A training step of a causal EA-6 block on one sequence, by one process and by two of which each
holds half of the tokens and sends the other its state: 15,368 bytes forward, and as many backward.
Each process has one thread, and both ways are timed in turn. Messages between the processes are
timed by their size. `python -m paper.benchmarks.ranks OPTIONS` is one of the processes.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group exists: its default arguments would keep the group
from torch import Tensor

from eattn.distributed import Shard
from eattn.nn import TransformerBlock
from paper.harness.measure import Candidate, interleave, relative_error, time_once
from paper.harness.peak import DiedError
from paper.harness.runlog import Key, Row, RunLog, rows_of
from paper.harness.table import Table, seconds
from paper.harness.target import Target, ratio

TITLE = "One sequence, two processes"
RANKS = 2
SHAPE = (1, 65536, 256)  # of the target
CHECKED = 257  # tokens, which RANKS does not divide


@dataclass(frozen=True)
class Plan:
    """Size of the sequence and of the messages."""

    length: int = SHAPE[1]
    dim: int = SHAPE[2]
    budget: float = 240.0  # seconds for the interleaved steps
    sizes: tuple[int, ...] = tuple(4**n for n in range(3, 13))  # bytes of a message, 64 … 16 Mi
    rounds: int = 15  # of messages


def plan(quick: bool) -> Plan:
    """Return the full plan, or an eighth of the tokens and fewer messages."""
    few = (64, 4096, 262144, 4194304)
    return Plan(length=8192, budget=20.0, sizes=few, rounds=5) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Check the values and gradients of two processes, then time steps and messages."""
    check = partial(start, RANKS, "check", dim=plan.dim)
    return log.measure_all(groups(plan), ({"what": "correctness"}, check))


def groups(plan: Plan) -> Iterator[tuple[Key, Callable[[], Iterator[Row]]]]:
    """Yield the key of each group of rows that are timed together, and how to measure them."""
    yield {"what": "step", "shape": (1, plan.length, plan.dim)}, partial(step_rows, plan)
    yield {"what": "gather", "ranks": RANKS}, partial(gather_rows, plan)


def step_rows(plan: Plan) -> Iterator[Row]:
    found = start(RANKS, "steps", length=plan.length, dim=plan.dim, budget=plan.budget)
    for name, ranks in (("alone", 1), ("together", RANKS)):
        yield {"mixer": "ea-6", "causal": True, "threads": 1, "ranks": ranks} | found[name]


def gather_rows(plan: Plan) -> Iterator[Row]:
    found = start(RANKS, "gathers", sizes=plan.sizes, rounds=plan.rounds)
    for size, times in found.items():
        yield {"bytes": int(size)} | times


def start(world: int, work: str, **options: Any) -> Any:
    """Return the result of a function of WORK in `world` processes; DiedError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"world": world, "store": f"{folder}/store", "work": work, "options": options}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", __spec__.name, json.dumps({"rank": rank} | given)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        output = [process.communicate() for process in processes]
    for rank, (process, (_, error)) in enumerate(zip(processes, output, strict=True)):
        if process.returncode:
            last = (error.strip().splitlines() or ["no output"])[-1]
            raise DiedError(f"process {rank} died (exit {process.returncode}): {last}")
    return json.loads(output[0][0].strip().splitlines()[-1])


def main(rank: int, world: int, store: str, work: str, options: dict[str, Any]) -> None:
    """Run a function of WORK on all ranks; rank 0 prints its result as JSON."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if rank < len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    found = WORK[work](**options)
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()  # no rank ends while another one still sends
    # Joins gloo's threads once nothing refers to the group; at exit they could abort the process.
    dist.destroy_process_group()
    gc.collect()


def check(dim: int) -> Row:
    """Return the largest relative error of shards against the whole, values and gradients."""
    block, x, gy = _inputs(CHECKED, dim)
    own, shard = Shard(check=False).rows(CHECKED)
    y = train(block, x, gy)
    expected = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    mine = train(block, x[:, own], gy[:, own], shard)
    found = [p.grad for p in block.parameters() if p.grad is not None]
    pairs = [(mine, y[:, own]), *zip(found, expected, strict=True)]
    worst = torch.tensor(max(relative_error(*pair) for pair in pairs))
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return {"error": float(worst)}


def steps(length: int, dim: int, budget: float) -> dict[str, Row]:
    """Time a training step by rank 0 alone, and by all ranks together."""
    block, x, gy = _inputs(length, dim)
    own, shard = Shard(check=False).rows(length)
    mine, gmine = x[:, own].contiguous(), gy[:, own].contiguous()

    def alone() -> None:
        if dist.get_rank() == 0:
            train(block, x, gy)
        dist.barrier()

    def together() -> None:
        train(block, mine, gmine, shard)
        dist.barrier()

    candidates = {
        work.__name__: Candidate(work, prepare=dist.barrier) for work in (alone, together)
    }
    once = torch.tensor(sum(time_once(each) for each in candidates.values()))
    dist.broadcast(once, 0)
    rounds = int(min(15, max(3, budget / max(float(once), 1e-9))))
    return {name: vars(times) for name, times in interleave(candidates, rounds=rounds).items()}


def gathers(sizes: list[int], rounds: int) -> dict[str, Row]:
    """Time an all-gather of each number of bytes per rank."""
    candidates = {}
    for size in sizes:
        own = torch.zeros(size, dtype=torch.uint8)
        received = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        calls = max(1, min(50, 2**22 // size))

        def run(own: Tensor = own, received: list[Tensor] = received, calls: int = calls) -> None:
            for _ in range(calls):
                dist.all_gather(received, own)

        candidates[str(size)] = Candidate(run, calls=calls, prepare=dist.barrier)
    return {name: vars(times) for name, times in interleave(candidates, rounds=rounds).items()}


def train(block: TransformerBlock, x: Tensor, gy: Tensor, shard: Shard | None = None) -> Tensor:
    """Run forward and backward; sum the gradients of the parameters over the ranks of a shard."""
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


def _inputs(length: int, dim: int) -> tuple[TransformerBlock, Tensor, Tensor]:
    torch.manual_seed(0)
    block = TransformerBlock(dim=dim, mixer="ea-6", causal=True)
    x, gy = torch.randn(2, 1, length, dim).unbind()
    return block, x, gy


WORK: dict[str, Callable[..., Any]] = {"check": check, "steps": steps, "gathers": gathers}


_alone, _together = ({"what": "step", "shape": SHAPE, "ranks": n} for n in (1, RANKS))
_speedup = ratio(_alone, _together)
TARGETS = (
    Target("training step: one process / two, one thread each", _speedup, at_least=1.7, unit="×"),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the times of a training step, and of messages between the processes."""
    quantiles = ("p20", "p50", "p80")
    steps, gathers = rows_of(rows, "step"), rows_of(rows, "gather")
    if steps:
        body = [[f"{row['ranks']}", *(f"{row[p]:.3f} s" for p in quantiles)] for row in steps]
        title = f"Training step, `{steps[0]['shape']}`, one thread per process"
        yield Table(title, ["processes", *quantiles], body)
    if gathers:
        body = [[f"{row['bytes']:,}", *(seconds(row[p]) for p in quantiles)] for row in gathers]
        yield Table("All-gather among the processes", ["bytes from each", *quantiles], body)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
