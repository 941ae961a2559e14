"""Functions and modules run by several processes that talk to each other over gloo, for tests."""

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
HANGS = timedelta(seconds=60)  # one that waits so long for another waits for ever


def torchrun(module: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Two processes of it."""
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
    """Of the gradient of each step in the block, before it is clipped.

    A factor in all gradients is lost on AdamW, and on a clipped step; here it shows.
    """
    from eattn.train import loop

    step, found = loop._Run._step, []

    def noted(self: Any, *args: Any) -> tuple[float, float]:
        loss, norm = step(self, *args)
        found.append(norm)
        return loss, norm

    loop._Run._step = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        loop._Run._step = step  # type: ignore[method-assign]


def run(work: Work, world: int, folder: Path) -> list[dict[str, Any]]:
    """What `work`, a function of a module, returned in each of `world` ranks."""
    context = mp.get_context("spawn")
    store = folder / f"store{world}"
    answers = [folder / f"answer{world}.{rank}" for rank in range(world)]
    ranks = [
        context.Process(target=_rank, args=(work, rank, world, str(store), str(answers[rank])))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [torch.load(answer, weights_only=True) for answer in answers]


def _rank(work: Work, rank: int, world: int, store: str, answer: str) -> None:
    torch.set_num_threads(1)
    files = dist.FileStore(store, world)
    dist.init_process_group("gloo", store=files, rank=rank, world_size=world, timeout=HANGS)
    try:
        found = work()
    except BaseException:
        found = {"error": traceback.format_exc()}
    else:
        dist.barrier()  # no rank leaves while another still sends
    torch.save(found, answer)
    dist.destroy_process_group()  # also wakes ranks that wait for this one
