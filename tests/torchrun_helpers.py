"""Run functions and modules in several processes connected by gloo."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group exists: its default arguments would keep the group
import torch.multiprocessing as mp

Work = Callable[[], dict[str, Any]]
TESTS = Path(__file__).parent
TIMEOUT = timedelta(seconds=60)
# Modules of all tests that fork: the first test decides what is imported once.
PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "eattn.lm", "eattn.timeseries.training"]
PRELOADED += ["paper.figures.fig4", "paper.figures.fig5", "paper.benchmarks.block"]


def torchrun(module: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a module in two processes with torchrun."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [sys.executable, *launch, "-m", module, *map(str, args)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def norms() -> Iterator[list[float]]:
    """Record the gradient norm of each training step before clipping.

    The norm reveals a wrong factor in all gradients, to which AdamW and clipping are invariant.
    """
    from eattn.train import loop

    step, found = loop._Run._step, []

    def recorded(self: Any, *args: Any) -> tuple[float, float]:
        loss, norm = step(self, *args)
        found.append(norm)
        return loss, norm

    loop._Run._step = recorded  # type: ignore[method-assign]
    try:
        yield found
    finally:
        loop._Run._step = step  # type: ignore[method-assign]


def run(work: Work, world: int, folder: Path) -> list[dict[str, Any]]:
    """Run `work`, a module-level function, in `world` ranks; return the result of each rank."""
    context = mp.get_context("forkserver")  # imports torch once, not in every rank
    context.set_forkserver_preload(PRELOADED)
    store = folder / f"store{world}"
    results = [folder / f"result{world}.{rank}" for rank in range(world)]
    ranks = [
        context.Process(target=_rank, args=(work, rank, world, str(store), str(results[rank])))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [torch.load(result, weights_only=True) for result in results]


def _rank(work: Work, rank: int, world: int, store: str, result: str) -> None:
    torch.set_num_threads(1)
    files = dist.FileStore(store, world)
    dist.init_process_group("gloo", store=files, rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        found = work()
    except BaseException:
        found = {"error": traceback.format_exc()}
    else:
        dist.barrier()  # no rank exits while another is still sending
    torch.save(found, result)
    dist.destroy_process_group()  # also aborts calls of ranks that wait for this one
