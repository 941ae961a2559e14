"""Scores of models over several seeds, next to the paper's."""

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from torch import nn

from eattn.train import History
from paper.harness.chart import GREY, LOOKS, PURPLE, Look, Panel, Point, dots
from paper.harness.runlog import Row, group

OTHERS = {"lightgbm": Look(PURPLE), "persistence": Look(GREY)}
PAPERS = {f"{n}, paper": k._replace(shape="diamond", hollow=True) for n, k in LOOKS.items()}


def trained_row(model: nn.Module, history: History) -> Row:
    """Return the fields of a training run: its best epoch, parameters and seconds."""
    assert history.best is not None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    fields = {"epoch": history.best.epoch, "parameters": parameters}
    return fields | {"seconds": history.seconds}


class Mean(NamedTuple):
    """Mean and standard deviation of one number over seeds."""

    value: float
    spread: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0, len(values))

    @property
    def text(self) -> str:
        """The mean, and the deviation if there are several seeds."""
        return f"{self.value:.3f}" + f" ± {self.spread:.3f}" * (self.seeds > 1)


def means(rows: Iterable[Row], score: str, *fields: str) -> dict[Any, Mean]:
    """Return the mean of a score for each combination of some fields."""
    groups = group(rows, *fields)
    return {key: Mean.of([row[score] for row in own]) for key, own in groups.items()}


def seeds(count: int) -> str:
    return f"{count} seed" + "s" * (count > 1)


def seeds_note(found: Iterable[Mean]) -> str:
    """Return a note about the numbers of a table."""
    most = max(mean.seeds for mean in found)
    return f"Mean ± standard deviation over {seeds(most)}." if most > 1 else "One seed."


def panel(
    title: str, scores: Iterable[tuple[str, str, Mean, float | None]], **options: Any
) -> Panel:
    """Draw mean and deviation of (model, x, our mean, the paper's number); the latter is hollow."""
    points: list[Point] = []
    for model, x, mean, paper in scores:
        at = {"series": model, "x": x, "y": mean.value}
        points.append(at | {"low": mean.value - mean.spread, "high": mean.value + mean.spread})
        if paper is not None:
            points.append(at | {"series": f"{model}, paper", "y": paper})
    return dots(title, points, looks=LOOKS | OTHERS | PAPERS, **options)
