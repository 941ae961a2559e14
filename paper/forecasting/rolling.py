"""Forecasts of consecutive windows at the end of series, and their scores.

MASE and CRPS are those of GIFT-Eval. A window is forecast from all values before it. The model is
fitted once, on the values before the first window, and reads each window after forecasting it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from eattn.timeseries import EAForecaster
from eattn.timeseries.metrics import seasonal_scale
from paper.forecasting.ours import LEVELS, Array, long_frame, quantiles
from paper.harness.runlog import Row

MEDIAN = LEVELS.index(0.5)


@dataclass(frozen=True)
class Rolling:
    """Series, and the number of windows of `horizon` values at their end.

    `known` holds covariates that are known in advance, with an array per series.
    """

    times: Sequence[Any]
    values: Sequence[Array]
    horizon: int
    windows: int
    season: int
    known: Mapping[str, Sequence[Array]] = field(default_factory=dict)

    def start(self, number: int, window: int) -> int:
        """Return the position of the first value of a window in a series."""
        return len(self.values[number]) - self.horizon * (self.windows - window)

    def frame(self, window: int | None = None) -> pd.DataFrame:
        """Return the rows of one window, or those before the first window."""
        spans = []
        for number in range(len(self.values)):
            at = self.start(number, window or 0)
            spans.append(slice(0, at) if window is None else slice(at, at + self.horizon))

        def cut(parts: Sequence[Any]) -> list[Any]:
            return [part[span] for part, span in zip(parts, spans, strict=True)]

        known = {name: cut(parts) for name, parts in self.known.items()}
        return long_frame(cut(self.times), cut(self.values), known)


def roll(data: Rolling, model: EAForecaster) -> tuple[Array, Row]:
    """Fit a model and forecast all windows; return quantiles [windows, series, levels, horizon].

    The row has the seconds of the fit, and of all forecasts and updates.
    """
    began = perf_counter()
    model.fit(data.frame())
    fitted, found = perf_counter(), []
    for window in range(data.windows):
        if window:
            model.update(data.frame(window - 1))
        future = {}
        if data.known:
            future["futr_df"] = data.frame(window).drop(columns="y")
        found.append(quantiles(model.predict(**future), data.horizon))
    seconds = {"fit_seconds": fitted - began, "predict_seconds": perf_counter() - fitted}
    return np.stack(found), seconds


def scores(data: Rolling, forecasts: Array) -> Row:
    """Return MASE and CRPS of quantiles [windows, series, levels, horizon].

    MASE is the mean of |y - median| over all values, each divided by the mean absolute seasonal
    difference of the values before its window. CRPS is the mean over the levels of the quantile
    losses, summed over all values and divided by the sum of |y|. Missing values are left out.
    """
    scaled, losses, total = [], np.zeros(len(LEVELS)), 0.0
    levels = np.array(LEVELS)[:, None]
    for number, values in enumerate(data.values):
        for window in range(data.windows):
            at = data.start(number, window)
            y, forecast = values[at : at + data.horizon], forecasts[window, number]
            valid = np.isfinite(y)
            error = y[valid] - forecast[:, valid]
            losses += 2 * np.maximum(levels * error, (levels - 1) * error).sum(1)
            total += np.abs(y[valid]).sum()
            scale = seasonal_scale(values[:at], data.season)
            if scale > 0:
                scaled.append(np.abs(error[MEDIAN]) / scale)
    return {
        "mase": float(np.concatenate(scaled).mean()),
        "crps": float((losses / total).mean()),
    }


def seasonal_naive(data: Rolling) -> Array:
    """Repeat the last season of every series; return quantiles as `roll` does.

    The quantiles are those of a normal distribution. Its variance is the mean square of the
    seasonal differences, times the number of seasons from the last known value.
    """
    normal = [NormalDist().inv_cdf(level) for level in LEVELS]
    found = np.empty((data.windows, len(data.values), len(LEVELS), data.horizon))
    steps = np.arange(data.horizon)
    for number, values in enumerate(data.values):
        filled = forward_fill(values)
        for window in range(data.windows):
            past = filled[: data.start(number, window)]
            season = data.season if len(past) > data.season else 1
            point = past[len(past) - season + steps % season]
            squares = np.square(past[season:] - past[:-season])
            sigma = math.sqrt(squares.mean()) if len(squares) else 0.0
            spread = sigma * np.sqrt(steps // season + 1)
            found[window, number] = [point + factor * spread for factor in normal]
    return found


def forward_fill(values: Array) -> Array:
    """Replace missing values by the last value before them, and leading ones by the first value."""
    return pd.Series(values).ffill().bfill().to_numpy()
