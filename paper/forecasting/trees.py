"""LightGBM with lags: one model for all series and all steps of the horizon.

A sample is one step ahead of one point of one series. Its features are the last values, the values
one and two seasons before the step, the number of the step, its position in the season, and the
covariates at the step and one season before. Values are relative to the value one season before,
because a tree cannot subtract, and in units of the seasonal differences of their series.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eattn.timeseries.metrics import seasonal_scale
from paper.forecasting.ours import Array
from paper.forecasting.rolling import forward_fill

SAMPLES = 300_000  # at most, drawn at random
OPTIONS: dict[str, Any] = {
    "objective": "l1",
    "n_estimators": 400,
    "learning_rate": 0.05,
    "random_state": 0,
    "n_jobs": 1,
    "verbose": -1,
}
Indices = NDArray[np.int64]


class Trees:
    """Forecast series from their lags, and from covariates if there are any.

    Parameters
    ----------
    horizon : int
        Number of steps to forecast.
    seasons : sequence of int
        Lengths of the seasons; forecasts are corrections of the value one first season before.
    """

    def __init__(self, horizon: int, seasons: Sequence[int]) -> None:
        self.horizon, self.seasons = horizon, list(seasons)
        self.lags = min(max(8, *seasons), 48)

    def fit(self, values: Sequence[Array], known: Sequence[Array] | None = None) -> "Trees":
        """Train on series and, optionally, their covariates [rows, columns]."""
        from lightgbm import LGBMRegressor

        rng = np.random.default_rng(0)
        self.scales = [self._scale(series) for series in values]
        counts = [max(len(series) - 1, 0) for series in values]  # points to forecast from
        share = min(1.0, SAMPLES / (self.horizon * max(sum(counts), 1)))
        features, targets = [], []
        for number, series in enumerate(values):
            points, steps = np.meshgrid(
                np.arange(1, len(series)), np.arange(self.horizon), indexing="ij"
            )
            chosen = (points + steps < len(series)) & (rng.random(points.shape) < share)
            points, steps = points[chosen], steps[chosen]
            x, base = self._features(number, series, known, points, steps)
            target = (series[points + steps] - base) / self.scales[number]
            valid = np.isfinite(target)
            features.append(x[valid])
            targets.append(target[valid])
        self.model = LGBMRegressor(**OPTIONS)
        self.model.fit(np.concatenate(features), np.concatenate(targets))
        return self

    def predict(self, values: Sequence[Array], known: Sequence[Array] | None = None) -> Array:
        """Forecast the series of `fit` from their present ends, [series, horizon].

        Covariates must reach to the end of the forecast.
        """
        found, steps = [], np.arange(self.horizon)
        for number, series in enumerate(values):
            points = np.full(self.horizon, len(series))
            x, base = self._features(number, series, known, points, steps)
            found.append(base + self.scales[number] * np.asarray(self.model.predict(x)))
        return np.stack(found)

    def _features(
        self,
        number: int,
        series: Array,
        known: Sequence[Array] | None,
        points: Indices,
        steps: Indices,
    ) -> tuple[Array, Array]:
        """Return features and the values that forecasts are relative to, of samples.

        A sample is the step `point + step` (from 0) of a series, of which `point` values are known.
        """
        filled, target = forward_fill(series), points + steps
        past = [target - season * (steps // season + 1) for season in self.seasons]
        before = past[0]  # one season before the step
        base = np.where(before >= 0, filled[before], filled[points - 1])
        lags = [points - 1 - lag for lag in range(self.lags)]
        seasonal = [at - m * n for at, m in zip(past, self.seasons, strict=True) for n in (0, 1)]
        columns = [
            (np.where(at >= 0, series[at], np.nan) - base) / self.scales[number]
            for at in (*lags, *seasonal)
        ]
        columns += [steps, target % self.seasons[0]]
        if known is not None:
            own = known[number]
            columns += list(own[target].T)
            columns += [np.where(before >= 0, column[before], np.nan) for column in own.T]
        return np.stack(columns, 1).astype(np.float64), base

    def _scale(self, series: Array) -> float:
        scale = seasonal_scale(series, self.seasons[0])
        return scale if scale > 0 else 1.0
