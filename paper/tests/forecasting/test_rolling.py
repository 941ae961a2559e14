"""Scores of rolling forecasts, computed by hand, and the rows that a model reads."""

import numpy as np
import pytest
from forecasting_helpers import pd

from paper.forecasting.ours import COLUMNS, LEVELS, long_frame, parsed, quantiles
from paper.forecasting.rolling import Rolling, forward_fill, roll, scores, seasonal_naive


def one(values: list[float], *, horizon: int = 2, windows: int = 1, season: int = 2) -> Rolling:
    return Rolling([np.arange(len(values))], [np.array(values)], horizon, windows, season)


def test_scores_match_values_computed_by_hand():
    data = one([1, 3, 2, 4, 3, 5, 4, 6])  # the seasonal difference is 1 everywhere
    point = np.broadcast_to(np.array([4.0, 4.0]), (1, 1, 9, 2))
    found = scores(data, point)
    assert found["mase"] == pytest.approx((0 + 2) / 2)
    assert found["crps"] == pytest.approx(np.mean([2 * q * 2 for q in LEVELS]) / (4 + 6))
    spread = np.broadcast_to(10 * np.array(LEVELS)[:, None], (1, 1, 9, 2))  # 1 ... 9, median 5
    losses = [
        2 * sum(q * (y - 10 * q) if y > 10 * q else (1 - q) * (10 * q - y) for y in (4, 6))
        for q in LEVELS
    ]
    found = scores(data, spread)
    assert found["mase"] == pytest.approx(1.0)
    assert found["crps"] == pytest.approx(np.mean(losses) / 10)


def test_missing_labels_and_constant_pasts_are_left_out():
    data = one([1, 3, 2, 4, 3, 5, 4, np.nan])
    forecast = np.full((1, 1, 9, 2), 7.0)
    assert scores(data, forecast)["mase"] == pytest.approx(3.0)
    values = [*data.values, np.array([5.0] * 6 + [6.0, 6.0])]
    both = Rolling([data.times[0]] * 2, values, 2, 1, 2)
    found = scores(both, np.full((1, 2, 9, 2), 7.0))
    assert found["mase"] == pytest.approx(3.0)  # the constant series has no scale
    assert found["crps"] == pytest.approx((3 + 1 + 1) / (4 + 6 + 6))


def test_every_window_is_scaled_by_the_values_before_it():
    data = one([0, 1, 2, 3, 13, 13], horizon=1, windows=2, season=1)
    forecast = np.zeros((2, 1, 9, 1))
    assert scores(data, forecast)["mase"] == pytest.approx((13 / 1 + 13 / (13 / 4)) / 2)


def test_seasonal_naive_repeats_the_season_with_growing_spread():
    data = one([0, 4, 2, 6, 0, 4, 9, 9, 9], horizon=3)
    (((*_, median, _, _, _, high),),) = seasonal_naive(data)
    assert median.tolist() == [0, 4, 0]
    assert (high - median).tolist() == pytest.approx(
        (1.2815515655 * 2 * np.sqrt([1, 1, 2])).tolist()
    )
    short = one([7, 9, 9], season=12)  # shorter than a season: the last value
    assert seasonal_naive(short)[0, 0, 4].tolist() == [7, 7]


def test_gaps_are_filled_with_the_last_value():
    gaps = np.array([np.nan, 2, np.nan, np.nan, 3, np.nan])
    assert forward_fill(gaps).tolist() == [2, 2, 2, 2, 3, 3]


class LastValue:
    """Forecast the last value of each series, and keep the rows that were read."""

    def fit(self, df):
        self.fitted = df
        self.read = df
        return self

    def update(self, df):
        self.read = pd.concat([self.read, df])
        return self

    def predict(self, futr_df=None):
        self.future = futr_df
        last = self.read.groupby("unique_id").agg({"ds": "max", "y": "last"})
        rows = [(name, ds + n, y) for name, ds, y in last.itertuples() for n in (1, 2)]
        table = pd.DataFrame(rows, columns=["unique_id", "ds", "y"])
        return table[["unique_id", "ds"]].assign(**dict.fromkeys(COLUMNS, table["y"]))[::-1]


def test_a_model_reads_every_window_after_forecasting_it():
    values = [np.arange(10.0), np.arange(100.0, 107.0)]
    known = {"temp": [np.arange(10.0) / 10, np.arange(7.0) / 10]}
    data = Rolling([np.arange(10), np.arange(7)], values, 2, 2, 1, known)
    model = LastValue()
    forecasts, seconds = roll(data, model)
    assert forecasts.shape == (2, 2, 9, 2)
    assert forecasts[:, :, 0, 0].tolist() == [[5, 102], [7, 104]]
    assert model.fitted.groupby("unique_id")["y"].max().tolist() == [5, 102]
    assert model.read.groupby("unique_id")["y"].max().tolist() == [7, 104]
    assert model.future.columns.tolist() == ["unique_id", "ds", "temp"]
    assert model.future["ds"].tolist() == [8, 9, 5, 6]
    assert set(seconds) == {"fit_seconds", "predict_seconds"}


def test_quantiles_are_ordered_by_series_time_and_level():
    table = pd.DataFrame({"unique_id": [1, 0, 1, 0], "ds": [5, 9, 4, 8]})
    table = table.assign(**{name: table["ds"] + n / 100 for n, name in enumerate(COLUMNS)})
    found = quantiles(table, 2)
    assert found.shape == (2, 9, 2)
    assert found[:, 0].tolist() == [[8, 9], [4, 5]]
    assert found[0, :, 0].tolist() == [8 + n / 100 for n in range(9)]


def test_options_are_read_as_python_values():
    assert parsed(["lr=1e-3", "mixer=sa", "levels=(1, 2)"]) == {
        "lr": 1e-3,
        "mixer": "sa",
        "levels": (1, 2),
    }
    with pytest.raises(ValueError, match="options must be NAME=VALUE, got 'lr'"):
        parsed(["lr"])


def test_frames_number_their_series():
    frame = long_frame([np.arange(2), np.arange(1)], [np.ones(2), np.zeros(1)])
    assert frame["unique_id"].tolist() == [0, 0, 1]
    assert frame["y"].tolist() == [1, 1, 0]
