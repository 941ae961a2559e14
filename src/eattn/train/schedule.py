"""When: the steps of a run, the epochs they make, and the learning rate of each."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eattn.train.config import TrainConfig
from eattn.train.dataset import batches

# The part of lr left at t in [0, 1): how much of the run after the warmup is over.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: 0.5 * (1.0 + math.cos(math.pi * t)),
}


@dataclass(frozen=True)
class Plan:
    """A run as a pure function of the step, from 0: nothing here need be saved to go on.

    >>> plan = Plan(100, TrainConfig(epochs=3, batch_size=32, schedule="linear", lr=0.12))
    >>> plan.per_epoch, plan.steps, plan.epoch(5), round(plan.lr(3), 3)
    (4, 12, 1, 0.09)
    """

    cases: int
    config: TrainConfig

    def __post_init__(self) -> None:
        c = self.config
        if not self.cases:
            raise ValueError("cases must not be empty: there is nothing to learn from")
        if not self.per_epoch:
            raise ValueError(
                f"batch_size = {c.batch_size} is more than the {self.cases} cases,"
                " and drop_last=True leaves out a smaller batch: nothing is left"
            )
        if self.warmup >= self.steps:
            raise ValueError(f"warmup must be below the {self.steps} steps, got {self.warmup}")

    @property
    def per_epoch(self) -> int:
        """Batches of one epoch."""
        whole, rest = divmod(self.cases, self.config.batch_size)
        return whole + (rest > 0 and not self.config.drop_last)

    @property
    def steps(self) -> int:
        """All steps of a run that nothing stops."""
        c = self.config
        limits = [c.max_steps, None if c.epochs is None else c.epochs * self.per_epoch]
        return min(limit for limit in limits if limit is not None)

    @property
    def warmup(self) -> int:
        """Steps in which lr grows."""
        w = self.config.warmup
        return round(w * self.steps) if isinstance(w, float) else w

    def lr(self, step: int) -> float:
        """lr (step + 1) / warmup while it grows, then lr f(t) by the schedule."""
        if step < self.warmup:
            return self.config.lr * (step + 1) / self.warmup
        t = (step - self.warmup) / (self.steps - self.warmup)
        return self.config.lr * SCHEDULES[self.config.schedule](t)

    def epoch(self, step: int) -> int:
        return step // self.per_epoch

    def batches(self, start: int) -> Iterator[list[int]]:
        """The cases of each step from `start` on."""
        c = self.config
        for epoch in range(self.epoch(start), self.epoch(self.steps - 1) + 1):
            first = epoch * self.per_epoch
            order = batches(
                self.cases, c.batch_size, seed=c.seed, epoch=epoch, drop_last=c.drop_last
            )
            for step, batch in enumerate(order, first):
                if start <= step < self.steps:
                    yield batch

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation follows the first `step` steps."""
        return step % (self.config.evaluate_every or self.per_epoch) == 0 or step == self.steps

    def stops(self, step: int) -> str | None:
        """Why the run is over after the first `step` steps: "epochs" or "max_steps"."""
        if step < self.steps:
            return None
        return "max_steps" if step == self.config.max_steps else "epochs"
