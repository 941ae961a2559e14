"""Functions run by several processes that talk to each other over gloo, for tests."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Work = Callable[[], dict[str, Any]]


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
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    try:
        found = work()
    except BaseException:
        torch.save({"error": traceback.format_exc()}, answer)
        os._exit(1)  # the others must not wait for this one
    torch.save(found, answer)
    dist.barrier()  # nobody leaves while another still talks
    os._exit(0)  # gloo's threads may outlive Python on a busy machine, and then abort it
