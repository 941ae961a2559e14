"""A run that is killed with SIGKILL again and again.

Run it with `python -m train.kill_worker FOLDER FIRST STRIDE`.

Moments are counted: each line of eattn.train that runs, and each piece of a checkpoint that goes to
the disk. Every attempt is a process of its own, forked from this one, which has imported torch and
done nothing else. It prints how many were killed in each of three ways.
"""

import itertools
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch._dynamo  # optimisers do, on first use: once here rather than in every process
from train.problem_helpers import accuracy, loss, net, points, timeless, weights

import eattn.train
from eattn.train import Batch, Task, TensorDataset, TrainConfig, checkpoint, train

HERE = str(Path(eattn.train.__file__).parent)
PIECE = 2000  # bytes


def noisy_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """All three kinds of random numbers, so that each must be restored."""
    noise = random.gauss(0, 0.1) + np.random.standard_normal() * 0.1
    return loss(model, batch) * (1 + noise)


def run(folder: Path) -> None:
    torch.set_num_threads(1)
    config = TrainConfig(
        epochs=3,
        batch_size=10,
        optimizer="radam",
        lr=0.02,
        schedule="cosine",
        warmup=3,
        checkpoint=folder / "checkpoint",
        checkpoint_every=3,  # in the middle of an epoch of four steps, too
    )
    task = Task(TensorDataset(*points()), noisy_loss, accuracy, metric="accuracy", better="higher")
    model = net()
    history = train(model, task, config)
    result = {"history": repr(timeless(history)), "weights": weights(model)}
    torch.save(result, folder / "result.partial")
    os.replace(folder / "result.partial", folder / "result.pt")


class Moments:
    """Counts them, and kills the process at one of them."""

    def __init__(self, last: int | None) -> None:
        self.count, self.last = 0, last

    def pass_one(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        if event == "line":
            self.pass_one()
        return self.trace

    def watch(self) -> None:
        moments = self

        class Slow:
            """A file that writes piece by piece."""

            def __init__(self, path: Path, mode: str) -> None:
                self.file = open(path, mode, buffering=0)  # noqa: SIM115

            def write(self, data: Any) -> int:
                for i in range(0, len(data), PIECE):
                    self.file.write(data[i : i + PIECE])
                    moments.pass_one()
                return len(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

            def __enter__(self) -> "Slow":
                return self

            def __exit__(self, *_: object) -> None:
                self.file.close()

        checkpoint.open = Slow  # type: ignore[attr-defined]
        sys.settrace(self.trace)


def forked(folder: Path, last: int | None) -> tuple[bool, int]:
    """Run in a process of its own: whether it was killed, and how many moments it had."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        moments = Moments(last)
        moments.watch()
        run(folder)
        sys.settrace(None)
        os.write(tell, str(moments.count).encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(told) as answer:
        count = answer.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"the run failed with status {status}"
    return killed, int(count or 0)


def at_each(folder: Path, whole: bytes, first: int, stride: int) -> int:
    """Kill at every stride-th moment, and go on to the end."""
    for kills in itertools.count():
        trial = folder / str(kills)
        trial.mkdir()
        killed, _ = forked(trial, first + kills * stride)
        if not killed:
            return kills
        assert not (trial / "result.pt").exists()
        forked(trial, None)
        assert result(trial) == whole, f"moment {first + kills * stride} differs"
        shutil.rmtree(trial)
    return -1


def in_a_row(folder: Path, whole: bytes, moments: int) -> int:
    """Kill one run after so many moments, and what goes on from it too, until it is done."""
    kills = 0
    while forked(folder, moments)[0]:
        kills += 1
    assert result(folder) == whole
    return kills


def from_outside(folder: Path, whole: bytes, attempts: int) -> int:
    """Kill one run at times it knows nothing of; the delays grow, so that it gets on."""
    rng, kills = random.Random(0), 0
    for attempt in range(attempts):
        child = os.fork()
        if not child:
            slowed_down()
            run(folder)
            os._exit(0)
        time.sleep(rng.uniform(0.02, 0.1) * (1 + attempt))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    forked(folder, None)
    assert result(folder) == whole
    return kills


def slowed_down() -> None:
    """Make the time between a written checkpoint and its new name long enough to be hit."""
    fsync = os.fsync

    def slow(handle: int) -> None:
        time.sleep(0.03)
        fsync(handle)

    os.fsync = slow  # type: ignore[assignment]


def result(folder: Path) -> bytes:
    return (folder / "result.pt").read_bytes()


def main(folder: Path, first: int, stride: int) -> None:
    places = {name: folder / name for name in ("whole", "each", "row", "outside")}
    for place in places.values():
        place.mkdir()
    killed, moments = forked(places["whole"], None)
    assert not killed
    whole = result(places["whole"])
    print(
        at_each(places["each"], whole, first, stride),
        in_a_row(places["row"], whole, moments // 2),
        from_outside(places["outside"], whole, 4),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
