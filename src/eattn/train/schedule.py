"""Steps and epochs of a run, and the learning rate of each step."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eattn.train.config import TrainConfig
from eattn.train.task import batches

# Factor of lr at t in [0, 1), the part of the run after the warmup that is over.
DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: 0.5 * (1.0 + math.cos(math.pi * t)),
}


@dataclass(frozen=True)
class Schedule:
    """Batches, learning rate and evaluations as pure functions of the step, which counts from 0.

    Examples
    --------
    >>> schedule = Schedule(100, TrainConfig(epochs=3, batch_size=32, schedule="linear", lr=0.12))
    >>> schedule.per_epoch, schedule.steps, schedule.epoch(5), round(schedule.lr(3), 3)
    (4, 12, 1, 0.09)
    """

    samples: int  # size of the dataset
    config: TrainConfig

    def __post_init__(self) -> None:
        c = self.config
        if not self.samples:
            raise ValueError("the dataset must not be empty, got 0 samples")
        if not self.per_epoch:
            raise ValueError(
                f"batch_size = {c.batch_size} is more than the {self.samples} samples,"
                " and drop_last=True drops the only batch"
            )
        if self.warmup >= self.steps:
            raise ValueError(f"warmup must be below the {self.steps} steps, got {self.warmup}")

    @property
    def per_epoch(self) -> int:
        """Number of batches of an epoch."""
        whole, rest = divmod(self.samples, self.config.batch_size)
        return whole + (rest > 0 and not self.config.drop_last)

    @property
    def steps(self) -> int:
        """Number of steps without early stopping."""
        c = self.config
        limits = [c.max_steps, None if c.epochs is None else c.epochs * self.per_epoch]
        return min(limit for limit in limits if limit is not None)

    @property
    def warmup(self) -> int:
        """Number of steps in which the learning rate grows."""
        w = self.config.warmup
        return round(w * self.steps) if isinstance(w, float) else w

    def lr(self, step: int) -> float:
        """Return lr (step + 1) / warmup during the warmup, then lr times the decay factor."""
        if step < self.warmup:
            return self.config.lr * (step + 1) / self.warmup
        t = (step - self.warmup) / (self.steps - self.warmup)
        return self.config.lr * DECAYS[self.config.schedule](t)

    def epoch(self, step: int) -> int:
        return step // self.per_epoch

    def batches(self, start: int) -> Iterator[list[int]]:
        """Yield the sample indices of each step from `start` on."""
        c = self.config
        for epoch in range(self.epoch(start), self.epoch(self.steps - 1) + 1):
            first = epoch * self.per_epoch
            order = batches(
                self.samples, c.batch_size, seed=c.seed, epoch=epoch, drop_last=c.drop_last
            )
            for step, batch in enumerate(order, first):
                if start <= step < self.steps:
                    yield batch

    def evaluates(self, step: int) -> bool:
        """Return whether to evaluate after `step` steps."""
        return step % (self.config.evaluate_every or self.per_epoch) == 0 or step == self.steps

    def stops(self, step: int) -> str | None:
        """Return the limit reached after `step` steps, "epochs" or "max_steps", or None."""
        if step < self.steps:
            return None
        return "max_steps" if step == self.config.max_steps else "epochs"
