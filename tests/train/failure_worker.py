"""A run of two processes, of which one is struck by SIGKILL.

Run it with `torchrun -m train.failure_worker FOLDER [N]`.

With N, the second process kills itself in its N-th step. Without, the run goes on from where that
left it, and another one is not disturbed at all; both go into FOLDER/result.pt.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from train.problem_helpers import accuracy, net, points, timeless, weights
from train.processes_worker import weighed

from eattn.train import Batch, Processes, Task, TensorDataset, TrainConfig, torchrun, train


def run(folder: Path, struck: int | None) -> dict[str, Any]:
    """With weights in parts, and dropout."""
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        nonlocal calls
        calls += 1
        if calls == struck and not Processes.current().first:
            os.kill(os.getpid(), signal.SIGKILL)
        return weighed(model, batch)

    task = Task(TensorDataset(*points()), loss, accuracy, metric="accuracy", better="higher")
    config = TrainConfig(epochs=3, batch_size=10, lr=0.02, checkpoint=folder, checkpoint_every=2)
    model = net(dropout=0.3)
    history = train(model, task, config)
    return {"history": repr(timeless(history)), "weights": weights(model), "calls": calls}


def main(folder: Path, struck: int | None) -> None:
    torch.set_num_threads(1)
    # torchrun ends those that are left, and must not before they have said why.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with torchrun(fsdp=True) as processes:
        resumed = run(folder / "checkpoint", struck)
        result = {"resumed": resumed, "whole": run(folder / "other", None)}
        if processes.first:
            torch.save(result, folder / "result.pt")
        processes.gather(None)  # all are here


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
