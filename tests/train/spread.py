"""Runs in as many processes as torchrun starts: `torchrun -m train.spread FOLDER`.

FOLDER/RANK.pt gets, by name, what each run gave: its history without times, and its weights.
"""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from train.problem import accuracy, loss, net, points, timeless, weights

from eattn.train import Batch, Processes, Task, TensorCases, TrainConfig, torchrun, train


def weighed(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Points on one side count three times: two shares of a batch hardly ever weigh the same."""
    x, y = batch
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    count = 1.0 + 2.0 * y
    return (each * count).sum() / count.sum(), float(count.sum())


def task(of: Any = weighed) -> Task:
    return Task(TensorCases(*points()), of, accuracy, metric="accuracy", better="higher")


# 40 cases: batches of 12, and the last of an epoch has 4
CONFIG = TrainConfig(epochs=3, batch_size=12, lr=0.02, schedule="cosine", warmup=2, clip=0.5)


class Cut(Exception):
    pass


def cut(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    cut.calls += 1  # type: ignore[attr-defined]
    if cut.calls == 7:  # type: ignore[attr-defined]
        raise Cut
    return weighed(model, batch)


def result(of: Task, config: TrainConfig, *, dropout: float = 0.0) -> dict[str, Any]:
    model = net(Processes.here().rank, dropout=dropout)  # the first one's weights must count
    history = train(model, of, config)
    return {"history": repr(timeless(history)), "rows": history.rows, "weights": weights(model)}


def cut_off(folder: Path) -> None:
    """A run that ends in its seventh step; its last checkpoint is that of the sixth."""
    cut.calls = 0  # type: ignore[attr-defined]
    result(task(cut), replace(CONFIG, checkpoint=folder, checkpoint_every=2))


def runs(folder: Path) -> dict[str, dict[str, Any]]:
    found = {"plain": result(task(), CONFIG)}
    with torchrun(fsdp=True):
        here = replace(CONFIG, checkpoint=folder / "one", checkpoint_every=2)
        found["from one"] = result(task(), here)
        with contextlib.suppress(Cut):
            cut_off(folder / "two")
        found["sharded"] = result(task(), CONFIG)
    dropped = replace(CONFIG, checkpoint=folder / "whole", checkpoint_every=2)
    found["whole"] = result(task(), dropped, dropout=0.3)
    dropped = replace(dropped, checkpoint=folder / "cut", checkpoint_seconds=1e-9)
    cut.calls = 0  # type: ignore[attr-defined]
    try:
        result(task(cut), dropped, dropout=0.3)
    except Cut:
        found["resumed"] = result(task(), dropped, dropout=0.3)
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with torchrun() as processes:
        found = runs(folder)
        try:
            train(net(), Task(TensorCases(*points(13)), loss), replace(CONFIG, batch_size=12))
        except ValueError as error:
            found["refused"] = {"error": str(error)}
        for run in found.values():
            run["rows"] = [(r.step, r.loss, r.metrics) for r in run.get("rows", ())]
        torch.save(found, folder / f"{processes.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
