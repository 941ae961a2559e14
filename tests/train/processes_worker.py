"""Runs in as many processes as torchrun starts: `torchrun -m train.processes_worker FOLDER`.

FOLDER/RANK.pt gets, by name, what each run gave: its history without times, and its weights.
"""

import contextlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchrun_helpers import norms
from train.problem_helpers import COUNT, SIDES, accuracy, net, points, timeless, weights

from eattn.nn import make_mixer
from eattn.train import (
    Batch,
    Checkpoint,
    Processes,
    Task,
    TensorDataset,
    TrainConfig,
    isolated,
    torchrun,
    train,
)


def weighed(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Points on one side count three times: two shares of a batch hardly ever weigh the same."""
    x, y = batch
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    count = 1.0 + 2.0 * y
    return (each * count).sum() / count.sum(), float(count.sum())


def task(of: Any = weighed, cases: int = COUNT) -> Task:
    return Task(TensorDataset(*points(cases)), of, accuracy, metric="accuracy", better="higher")


FEW = 25  # the last batch of an epoch has one case
# 40 cases: batches of 12, and the last of an epoch has 4
CONFIG = TrainConfig(epochs=3, batch_size=12, lr=0.02, schedule="cosine", warmup=2, clip=0.5)

# Runs that are also cut off, and go on: with dropout, of random numbers that each process has its
# own of; and with buffers.
PAIRS: dict[str, dict[str, Any]] = {"": dict(dropout=0.3), " centred": dict(center=True)}


class Cut(Exception):
    pass


def cut(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    cut.calls += 1  # type: ignore[attr-defined]
    if cut.calls == 7:  # type: ignore[attr-defined]
        raise Cut
    return weighed(model, batch)


def centred(seed: int) -> nn.Module:
    """With a learnt centre: buffers that the share of each process would move elsewhere."""
    with isolated(seed):
        return nn.Sequential(
            *(nn.Unflatten(1, (4, 1)), nn.Linear(1, 4)),
            *(make_mixer("ea-6+center", 4, causal=True), nn.Flatten(), nn.Linear(16, SIDES)),
        )


def result(
    of: Task, config: TrainConfig, *, dropout: float = 0.0, center: bool = False
) -> dict[str, Any]:
    seed = Processes.current().rank  # the first one's weights must count
    model = centred(seed) if center else net(seed, dropout=dropout)
    with norms() as found:
        history = train(model, of, config)
    rows = [(row.step, row.loss, row.metrics) for row in history.rows]
    told = {"history": repr(timeless(history)), "rows": rows, "norms": found}
    return told | {"weights": weights(model)}


def cut_off(folder: Path) -> None:
    """A run that ends in its seventh step; its last checkpoint is that of the sixth."""
    cut.calls = 0  # type: ignore[attr-defined]
    result(task(cut), replace(CONFIG, checkpoint=folder, checkpoint_every=2))


def runs(folder: Path) -> dict[str, dict[str, Any]]:
    found = {"plain": result(task(), CONFIG), "few": result(task(cases=FEW), CONFIG)}
    with torchrun(fsdp=True):
        one = folder / ("one" if Processes.current().first else "one by another name")
        here = replace(CONFIG, checkpoint=one, checkpoint_every=2)
        found["from one"] = result(task(), here)
        with contextlib.suppress(Cut):
            cut_off(folder / "two")
        found["sharded"] = result(task(), CONFIG)
        found["few sharded"] = result(task(cases=FEW), CONFIG)
    for name, options in PAIRS.items():
        kept = replace(CONFIG, checkpoint=folder / f"whole{name}", checkpoint_every=2)
        found[f"whole{name}"] = result(task(), kept, **options)
        kept = replace(kept, checkpoint=folder / f"cut{name}", checkpoint_seconds=1e-9)
        cut.calls = 0  # type: ignore[attr-defined]
        try:
            result(task(cut), kept, **options)
        except Cut:
            found[f"resumed{name}"] = result(task(), kept, **options)
    return found


def full(_: nn.Module) -> dict[str, float]:
    raise ValueError(f"no room in process {Processes.current().rank}")


def refusals(folder: Path) -> dict[str, str]:
    """What is said of a checkpoint with a wrong bit, of one that is none, of other configs, of an
    evaluation that fails in the one process that has it, and of a checkpoint that one alone sees.
    """
    first = Processes.current().first
    damaged, torn = folder / "damaged", folder / "torn"
    if first:
        shutil.copytree(folder / "cut", damaged)
        part = next(damaged.glob("step-*/__1_0.distcp"))
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
        torn.mkdir()
        (torn / "last.pt").write_bytes(b"nothing")
        Checkpoint(folder / "own of 0").save({})
    Processes.current().gather(None)  # all see what the first has made
    configs = {
        "damaged": replace(CONFIG, checkpoint=damaged),
        "torn": replace(CONFIG, checkpoint=torn),
        "seeds": replace(CONFIG, seed=0 if first else 5),
        "full": CONFIG,
        "unseen": replace(CONFIG, checkpoint=folder / f"own of {Processes.current().rank}"),
    }
    found = {}
    for name, config in configs.items():
        try:
            result(replace(task(), evaluate=full), config, dropout=0.3)
        except ValueError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with torchrun() as processes:
        found = runs(folder) | {"refused": refusals(folder)}
        torch.save(found, folder / f"{processes.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
