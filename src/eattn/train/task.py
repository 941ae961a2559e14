"""What is to be learnt: the cases, the loss of a batch, and how the result is judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from eattn.distributed import Shard
from eattn.train.dataset import Batch, Cases

Loss = Tensor | tuple[Tensor, float]
TRAIN_LOSS = "train_loss"  # the metric every run has, without an `evaluate`


@dataclass(frozen=True)
class Task:
    """What `train` is given beside a model.

    `loss(model, batch)` is the mean over the batch, or (mean, weight) where the batch counts for
    other than its number of cases: its real tokens, say. `evaluate(model)` gives named values of
    the model in eval mode, without gradients, in the run's precision. `metric` is the one of them
    that decides, and `better` says which way; "train_loss" is the mean loss since the last
    evaluation. Without a metric nothing is decided: no early stopping, and the last weights stay.

    `data` is a digest of what is learnt from, if there is one: a run goes on with the same alone.

    `shard(batch, shard)` returns this process's tokens of a batch whose sequences are spread over
    several processes, and the shard with its `before` set; the loss is then the mean over these
    tokens. Without it, `sequence_parallel` raises.

    >>> import torch
    >>> from eattn.train import TensorCases
    >>> x = torch.randn(8, 3)
    >>> Task(TensorCases(x), lambda model, batch: model(batch[0]).square().mean())
    Task(8 cases)
    """

    cases: Cases
    loss: Callable[[nn.Module, Batch], Loss]
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    metric: str | None = None
    better: Literal["higher", "lower"] | None = None
    data: str | None = None
    shard: Callable[[Batch, Shard], tuple[Batch, Shard]] | None = None

    def __post_init__(self) -> None:
        if self.metric is None:
            return
        if self.better not in ("higher", "lower"):
            raise ValueError(
                f"better must be 'higher' or 'lower' for metric {self.metric!r},"
                f" got {self.better!r}"
            )
        if self.evaluate is None and self.metric != TRAIN_LOSS:
            raise ValueError(
                f"metric must be {TRAIN_LOSS!r} where there is no evaluate, got {self.metric!r}"
            )

    def __repr__(self) -> str:
        decided = "" if self.metric is None else f", {self.better} {self.metric} is better"
        return f"Task({len(self.cases)} cases{decided})"

    def weighed(self, result: Loss, size: int) -> tuple[Tensor, float]:
        """What `loss` gave for a batch of `size` cases, checked, and what it counts for."""
        loss, weight = result if isinstance(result, tuple) else (result, size)
        if not isinstance(loss, Tensor) or loss.dim():
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss must return a tensor without dimensions, got {got}")
        if not loss.requires_grad:
            raise ValueError("loss must depend on the model's parameters, got one without gradient")
        return loss, float(weight)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """What `evaluate` gives, in plain floats."""
        found = {} if self.evaluate is None else self.evaluate(model)
        metrics = {name: float(value) for name, value in found.items()}
        if TRAIN_LOSS in metrics:
            raise ValueError(f"evaluate must not name a metric {TRAIN_LOSS!r}: every run has one")
        if self.metric not in (None, TRAIN_LOSS, *metrics):
            raise ValueError(
                f"metric must be one that evaluate gives ({', '.join(metrics) or 'none'}),"
                f" or {TRAIN_LOSS!r}, got {self.metric!r}"
            )
        return metrics

    def improves(self, value: float, best: float | None) -> bool:
        """Whether a value is better than the best so far; NaN never is, an equal one neither."""
        if value != value:
            return False
        if best is None:
            return True
        return value > best if self.better == "higher" else value < best
