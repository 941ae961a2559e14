"""Record of a run: a row per evaluation, the best of them, and the state to resume from."""

from dataclasses import asdict, dataclass, field
from typing import Any

from eattn.train.task import TRAIN_LOSS


@dataclass(frozen=True)
class Row:
    """One evaluation. Epochs and steps count from 1."""

    epoch: int
    step: int  # steps done
    lr: float  # of the last step
    loss: float  # mean since the previous row
    seconds: float  # of training since the run began, without interruptions
    metrics: dict[str, float] = field(default_factory=dict)

    def value(self, metric: str) -> float:
        return self.loss if metric == TRAIN_LOSS else self.metrics[metric]


@dataclass(frozen=True)
class History:
    """Result of `train`."""

    rows: tuple[Row, ...]
    best: Row | None  # by the metric; keep="best" keeps its weights; None without a metric
    stopped: str  # "epochs", "max_steps" or "patience"
    seconds: float


@dataclass
class RunState:
    """Progress of a run in plain values; a checkpoint adds weights, optimizer and RNG."""

    step: int = 0  # steps done; the epoch and the position in it follow
    seconds: float = 0.0
    loss_sum: float = 0.0  # since the last row
    weight: float = 0.0  # of the losses in loss_sum
    rows: list[Row] = field(default_factory=list)
    best: int | None = None  # index of a row
    waited: int = 0  # evaluations since the best
    stopped: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "RunState":
        return cls(**plain | {"rows": [Row(**row) for row in plain["rows"]]})

    def history(self) -> History:
        best = None if self.best is None else self.rows[self.best]
        return History(tuple(self.rows), best, self.stopped or "", self.seconds)
