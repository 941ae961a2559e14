"""A run of two processes, one of which kills itself.

Run it with `torchrun -m train.failure_worker FOLDER [N]`: with N, rank 1 kills itself at its N-th
step. Without, that run is resumed, and compared with another one in FOLDER/result.pt.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from train.problem_helpers import net, scored, timeless, weighted, weights

from eattn.train import Batch, Processes, TrainConfig, torchrun, train


def run(folder: Path, last: int | None) -> dict[str, Any]:
    """Train with sharded weights and dropout."""
    calls = 0

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        nonlocal calls
        calls += 1
        if calls == last and not Processes.current().first:
            os.kill(os.getpid(), signal.SIGKILL)
        return weighted(model, batch)

    config = TrainConfig(epochs=3, batch_size=10, lr=0.02, checkpoint=folder, checkpoint_every=2)
    model = net(dropout=0.3)
    history = train(model, scored(loss), config)
    return {"history": repr(timeless(history)), "weights": weights(model), "calls": calls}


def main(folder: Path, last: int | None) -> None:
    torch.set_num_threads(1)
    # torchrun ends the remaining process, but not before that process has reported the loss.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with torchrun(fsdp=True) as processes:
        resumed = run(folder / "checkpoint", last)
        result = {"resumed": resumed, "whole": run(folder / "other", None)}
        if processes.first:
            torch.save(result, folder / "result.pt")
        processes.gather(None)  # wait for all


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
