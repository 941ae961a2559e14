"""Recipe of the pretrained weights: one model for series with no, one or two seasons.

The weights are those of a `QuantileForecaster` that reads two seasons. For a series with fewer, the
inputs and outputs of the missing seasons are left out; see `eattn.timeseries.pretrained`. Series of
a group share their season lengths, and a batch consists of several groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from eattn.models import QuantileForecaster
from eattn.timeseries.features import (
    SEASON_FEATURES,
    STEP_FEATURES,
    TOKEN_FEATURES,
    rule_names,
)
from eattn.timeseries.inputs import TimeSeries
from eattn.timeseries.pretrained import LEVELS, SEASONS, adapt
from eattn.timeseries.windows import SeriesTable, WindowBatch
from paper.beyond.pretraining.generator import draw_seasons, generate

VALIDATION = 10**9  # number of the first group of the validation part
TOKENS = 4096  # of a group
LONGEST, SHORTEST = 512, 12  # tokens of a series
MOST_SERIES = 64  # of a group
ORIGINS, STEPS = 12, 32  # times to forecast from in a series, and steps ahead of them
HORIZON = 720  # longest
SHORT = 0.5  # share of groups with short series
BEFORE = 0.5  # share of groups with seasons that have values before the first token
MOST_BEFORE = 1344  # such values; the longest seasons need them
EARLY = 0.3  # share of times to forecast from that are drawn near the first token


@dataclass(frozen=True)
class Groups:
    """Groups of synthetic series, each drawn from its number.

    A group has TOKENS tokens in all: a few long series or many short ones.
    """

    count: int
    first: int = 0
    seed: int = 0

    def __len__(self) -> int:
        return self.count

    def collate(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self.group(self.first + index) for index in indices]

    def group(self, number: int) -> dict[str, Any]:
        """Return the windows of a group, and the number of its seasons."""
        rng = np.random.default_rng([self.seed, number])
        present, declared = draw_seasons(rng)
        short = rng.random() < SHORT
        past = _between(rng, SHORTEST, LONGEST) if short else LONGEST
        horizon = _between(rng, 2, min(past, HORIZON)) if short else _between(rng, 4, HORIZON)
        before = 0
        if declared and not short and rng.random() < BEFORE:
            before = int(rng.integers(min(2 * max(declared), MOST_BEFORE)))
        declared = tuple(m for m in declared if m <= (before + past) // 2)  # as in a fit
        length, count = before + past + horizon, min(TOKENS // past, MOST_SERIES)
        values = [generate(rng, max(length, 10), present)[:length] for _ in range(count)]
        nothing = [np.empty((length, 0), np.float32)] * count
        known = [np.empty((length + horizon, 0), np.float32)] * count
        series = [TimeSeries(n, None, y) for n, y in enumerate(values)]
        table = SeriesTable.of(series, known, nothing, seasons=declared, horizon=horizon)
        shape = (count, min(ORIGINS, past))
        even = rng.uniform(0, past - 1, shape)
        early = np.exp(rng.uniform(0, np.log(past), shape)) - 1
        origins = before + np.where(rng.random(shape) < EARLY, early, even).astype(np.int64)
        steps = np.arange(1, horizon + 1)
        if horizon > STEPS:
            steps = np.sort(rng.choice(steps, STEPS, replace=False))
        numbers = np.arange(count)
        begins, ends = np.full_like(numbers, before), np.full_like(numbers, length)
        batch = table.batch(numbers, origins, begins, past, steps, ends)
        return batch | {"seasons": torch.tensor(len(declared))}


def _between(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a whole number whose logarithm is evenly distributed."""
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


class Foundation(nn.Module):
    """Weights for two seasons, applied to series with no, one or two."""

    def __init__(self, **design: Any) -> None:
        super().__init__()
        self.full = make_model(SEASONS, **design)
        with torch.device("meta"):
            smaller = {n: make_model(n, **design) for n in range(SEASONS)}
        self.__dict__["templates"] = smaller | {SEASONS: self.full}  # without their parameters

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return quantiles [B, O, H, levels] of a group of series."""
        seasons = int(batch["seasons"])
        weights = dict(self.full.named_parameters()) | {"gaps": self.full.gaps}
        inputs = tuple(batch[name] for name in ("tokens", "origins", "rules", "features"))
        model: nn.Module = self.__dict__["templates"][seasons]
        model.train(self.training)
        own = adapt(weights, **sizes_of(seasons))
        found: Tensor = functional_call(model, own, inputs)
        return found


def make_model(seasons: int, **design: Any) -> QuantileForecaster:
    """Return a model for series with this number of seasons."""
    sizes = sizes_of(seasons)
    return QuantileForecaster(
        tokens=sizes["tokens"],
        rules=len(rule_names(range(seasons))),
        features=sizes["features"],
        plain=STEP_FEATURES,
        levels=LEVELS,
        **design,
    )


def sizes_of(seasons: int) -> dict[str, Any]:
    """Return the sizes of the inputs of a model without calendar and covariates."""
    tokens = TOKEN_FEATURES + SEASON_FEATURES * seasons
    return {"seasons": seasons, "tokens": tokens, "features": STEP_FEATURES}


def loss(model: nn.Module, groups: list[WindowBatch]) -> Tensor:
    """Return the mean pinball loss relative to seasonal naive; every group counts the same."""
    return torch.stack([losses(model, batch).mean() for batch in groups]).mean()


def losses(model: nn.Module, batch: WindowBatch) -> Tensor:
    """Return the pinball loss of each series, relative to the error of seasonal naive: [B]."""
    quantiles, counts = model(batch), batch["counts"]
    error = batch["y"].unsqueeze(-1) - quantiles
    level = error.new_tensor(LEVELS)
    own = 2 * torch.maximum(level * error, (level - 1) * error).mean(-1)
    naive = (batch["y"] - batch["rules"][..., 0]).abs()
    total = counts.sum((1, 2)).clamp(min=1)
    own, naive = (torch.where(counts, x, 0).sum((1, 2)) / total for x in (own, naive))
    return own / naive.clamp(min=0.05)
