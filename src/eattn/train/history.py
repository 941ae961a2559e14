"""What happened in a run: a row for each evaluation, which was the best, and why it ended."""

from dataclasses import asdict, dataclass, field
from typing import Any

from eattn.train.task import TRAIN_LOSS


@dataclass(frozen=True)
class Row:
    """One evaluation. Epochs and steps count from 1."""

    epoch: int  # the one it falls in, or ends
    step: int  # how many steps were done
    lr: float  # of the last of them
    loss: float  # mean since the row before
    seconds: float  # since the run began, without the time between a kill and going on
    metrics: dict[str, float] = field(default_factory=dict)

    def value(self, metric: str) -> float:
        return self.loss if metric == TRAIN_LOSS else self.metrics[metric]


@dataclass(frozen=True)
class History:
    """What `train` returns.

    `best` is the row with the best metric, and that of the weights kept with keep="best"; None
    where the task has no metric. `stopped` is "epochs", "max_steps" or "patience".
    """

    rows: tuple[Row, ...]
    best: Row | None
    stopped: str
    seconds: float


@dataclass
class Standing:
    """How far a run is, in plain values: with weights, optimiser and RNG, all there is to save."""

    step: int = 0  # steps done; the epoch and the place in it follow from it
    seconds: float = 0.0
    loss_sum: float = 0.0  # since the last row
    weight: float = 0.0  # of the losses in it
    rows: list[Row] = field(default_factory=list)
    best: int | None = None  # the number of a row
    waited: int = 0  # evaluations since the best
    stopped: str | None = None

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, plain: dict[str, Any]) -> "Standing":
        return cls(**plain | {"rows": [Row(**row) for row in plain["rows"]]})

    def history(self) -> History:
        best = None if self.best is None else self.rows[self.best]
        return History(tuple(self.rows), best, self.stopped or "", self.seconds)
