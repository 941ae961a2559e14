"""Kill a run with SIGKILL at many moments, and resume it.

Run it with `python -m train.kill_worker FOLDER FIRST STRIDE`.

A moment is a line of eattn.train that runs, or a piece of a checkpoint that is written. Every
attempt is a forked process. Prints how often a new run was killed, and a single one in a row. In
the end a run is killed from outside at random times.
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
import torch._dynamo  # optimizers import it on first use: once here, not in every process
from train.problem_helpers import loss, net, scored, timeless, weights

import eattn.train
from eattn.train import Batch, TrainConfig, checkpoint, train

HERE = str(Path(eattn.train.__file__).parent)
PIECE = 2000  # bytes


def noisy_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Use the generators of Python, NumPy and (by dropout) torch."""
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
        checkpoint_every=3,  # also within an epoch of four steps
    )
    model = net()
    history = train(model, scored(noisy_loss), config)
    result = {"history": repr(timeless(history)), "weights": weights(model)}
    torch.save(result, folder / "result.partial")
    os.replace(folder / "result.partial", folder / "result.pt")


class Moments:
    """Count moments, and kill the process at one of them."""

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
    """Run in a forked process; return whether it was killed, and its number of moments."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        moments = Moments(last)
        moments.watch()
        run(folder)
        sys.settrace(None)
        os.write(writer, str(moments.count).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        count = answer.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"the run failed with status {status}"
    return killed, int(count or 0)


def at_each(folder: Path, whole: bytes, first: int, stride: int) -> int:
    """Kill a new run at every stride-th moment, and resume it to the end."""
    for kills in itertools.count():
        trial = folder / str(kills)
        trial.mkdir()
        if not forked(trial, first + kills * stride)[0]:
            return kills
        assert not (trial / "result.pt").exists()
        forked(trial, None)
        assert result(trial) == whole, f"moment {first + kills * stride} differs"
        shutil.rmtree(trial)
    return -1


def in_a_row(folder: Path, whole: bytes, moments: int) -> int:
    """Kill one run again and again until it is done."""
    kills = 0
    while forked(folder, moments)[0]:
        kills += 1
    assert result(folder) == whole
    return kills


def at_random(folder: Path, whole: bytes, kills: int) -> None:
    """Kill one run from outside after random times, which grow so that it gets ahead."""
    rng, fsync = random.Random(0), os.fsync
    for attempt in range(1, kills + 1):
        if not (child := os.fork()):
            os.fsync = lambda file: (time.sleep(0.03), fsync(file))[1]  # before the renaming
            run(folder)
            os._exit(0)
        time.sleep(rng.uniform(0.02, 0.1) * attempt)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    forked(folder, None)
    assert result(folder) == whole


def result(folder: Path) -> bytes:
    return (folder / "result.pt").read_bytes()


def main(folder: Path, first: int, stride: int) -> None:
    folders = [folder / name for name in ("whole", "each", "row", "random")]
    for each in folders:
        each.mkdir()
    killed, moments = forked(folders[0], None)
    assert not killed
    whole = result(folders[0])
    print(at_each(folders[1], whole, first, stride), in_a_row(folders[2], whole, moments // 2))
    at_random(folders[3], whole, kills=4)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
