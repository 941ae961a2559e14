"""Runs in two processes: `torchrun -m train.processes_worker FOLDER [N]`.

With N, rank 1 kills itself at its N-th step. Without, that run is resumed, and `main` returns the
result of each run by name: its history without times, and its weights.
"""

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchrun_helpers import norms
from train.problem_helpers import (
    SIDES,
    Interrupted,
    interrupted,
    net,
    scored,
    timeless,
    weighted,
    weights,
)

from eattn.nn import make_mixer
from eattn.train import Batch, Checkpoint, Processes, Task, TrainConfig, isolated, torchrun, train

FEW = 25  # the last batch of an epoch has one sample
# 40 samples: batches of 12, and the last of an epoch has 4
CONFIG = TrainConfig(epochs=3, batch_size=12, lr=0.02, schedule="cosine", warmup=2, clip=0.5)
TASK, INTERRUPTED = scored(weighted), 7
# Runs that are interrupted and resumed: with random numbers of each process, and with buffers.
PAIRS: dict[str, dict[str, Any]] = {"": dict(dropout=0.3), " centered": dict(center=True)}


def centered(seed: int) -> nn.Module:
    """A model with buffers, which the batch of each process would update differently."""
    with isolated(seed):
        return nn.Sequential(
            *(nn.Unflatten(1, (4, 1)), nn.Linear(1, 4)),
            *(make_mixer("ea-6+center", 4, causal=True), nn.Flatten(), nn.Linear(16, SIDES)),
        )


def result(
    task: Task, config: TrainConfig, *, dropout: float = 0.0, center: bool = False
) -> dict[str, Any]:
    seed = Processes.current().rank  # the weights of rank 0 must count
    model = centered(seed) if center else net(seed, dropout=dropout)
    with norms() as found:
        history = train(model, task, config)
    rows = [(row.step, row.loss, row.metrics) for row in history.rows]
    about = {"history": repr(timeless(history)), "rows": rows, "norms": found}
    return about | {"weights": weights(model)}


def stop(folder: Path) -> None:
    """Run up to step 7; the last checkpoint is that of step 6."""
    with contextlib.suppress(Interrupted):
        config = replace(CONFIG, checkpoint=folder, checkpoint_every=2)
        result(interrupted(TASK, INTERRUPTED), config)


def runs(folder: Path) -> dict[str, dict[str, Any]]:
    few = scored(weighted, FEW)
    found = {"plain": result(TASK, CONFIG), "few": result(few, CONFIG)}
    with torchrun(fsdp=True):
        one = folder / ("one" if Processes.current().first else "one by another name")
        found["from one"] = result(TASK, replace(CONFIG, checkpoint=one, checkpoint_every=2))
        stop(folder / "two")
        found["sharded"] = result(TASK, CONFIG)
        found["few sharded"] = result(few, CONFIG)
    for name, options in PAIRS.items():
        config = replace(CONFIG, checkpoint=folder / f"whole{name}", checkpoint_every=2)
        found[f"whole{name}"] = result(TASK, config, **options)
        config = replace(config, checkpoint=folder / f"cut{name}", checkpoint_seconds=1e-9)
        with contextlib.suppress(Interrupted):
            result(interrupted(TASK, INTERRUPTED), config, **options)
        found[f"resumed{name}"] = result(TASK, config, **options)
    return found


def full(_: nn.Module) -> dict[str, float]:
    raise ValueError(f"no room in process {Processes.current().rank}")


def errors(folder: Path) -> dict[str, str]:
    """Return the messages of runs that must fail on both ranks."""
    processes = Processes.current()
    if processes.first:
        (folder / "torn").mkdir()
        (folder / "torn" / "last.pt").write_bytes(b"nothing")
        Checkpoint(folder / "own of 0").save({"state": {"step": 3}})
    processes.gather(None)  # wait for the files
    configs = {
        "torn": replace(CONFIG, checkpoint=folder / "torn"),
        "seeds": replace(CONFIG, seed=0 if processes.first else 5),
        "full": CONFIG,
        "unseen": replace(CONFIG, checkpoint=folder / f"own of {processes.rank}"),
    }
    found = {}
    for name, config in configs.items():
        try:
            result(replace(TASK, evaluate=full), config, dropout=0.3)
        except ValueError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def killed(folder: Path, last: int | None) -> dict[str, Any]:
    """Run with sharded weights and dropout; rank 1 kills itself at step `last`."""
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        nonlocal calls
        calls += 1
        if calls == last and not Processes.current().first:
            os.kill(os.getpid(), signal.SIGKILL)
        return weighted(model, batch)

    config = replace(CONFIG, batch_size=10, checkpoint=folder, checkpoint_every=2)
    return result(scored(loss), config, dropout=0.3) | {"calls": calls}


def main(folder: Path, last: int | None = None) -> dict[str, Any]:
    torch.set_num_threads(1)
    # torchrun ends the remaining process, but not before that process has reported the loss.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with torchrun(fsdp=True) as processes:
        resumed = killed(folder / "killed", last)
        found = {"after kill": resumed, "without kill": killed(folder / "not killed", None)}
        processes.gather(None)  # wait for all
    with torchrun() as processes:
        return found | runs(folder) | {"errors": errors(folder)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
