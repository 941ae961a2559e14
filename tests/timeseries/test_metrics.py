"""Metrics of forecasts: definitions, missing values, and the scores of a backtest."""

import numpy as np
import pandas as pd
import pytest

from eattn.timeseries import metrics

NAME = "EAForecaster"


def test_metrics_ignore_missing_values():
    y, f = np.array([2.0, np.nan, -1.0, 0.0]), np.array([1.0, 5.0, 1.0, 0.0])
    assert metrics.mae(y, f) == 1
    assert metrics.rmse(y, f) == pytest.approx((5 / 3) ** 0.5)
    assert metrics.smape(y, f) == pytest.approx((2 / 3 + 2) / 3)  # 0 where both are 0
    assert metrics.mase(y, f, 2) == 0.5
    assert metrics.pinball(y, f, 0.5) == 0.5
    assert metrics.pinball(y, f, 0.9) == pytest.approx((0.9 + 0.2) / 3)
    assert metrics.coverage(y, f, f + 1) == pytest.approx(2 / 3)
    for metric in (metrics.mae, metrics.rmse, metrics.smape):
        assert np.isnan(metric([np.nan], [1.0]))


def test_constant_series_are_left_out_of_mase():
    assert metrics.seasonal_scale([5.0] * 9) == 0
    assert np.isnan(metrics.seasonal_scale([5.0]))
    assert metrics.mase([1, 2], [2, 4], [0, 4]) == 0.5
    assert np.isnan(metrics.mase([1, 2], [2, 4], 0))


@pytest.mark.parametrize(("season", "lag"), [(1, 1), (3, 3), (9, 9), (10, 1), (24, 1)])
def test_scale_uses_one_step_if_history_is_short(season, lag):
    history = np.random.default_rng(0).normal(size=10)
    history[4] = np.nan
    pairs = np.abs(history[lag:] - history[:-lag])
    assert metrics.seasonal_scale(history, season) == pytest.approx(np.nanmean(pairs))


@pytest.mark.parametrize(
    ("freq", "season"),
    [
        *[("min", 1440), ("30min", 48), ("2h", 12), ("24h", 1), ("B", 5), ("W-WED", 1)],
        *[("3MS", 4), ("BME", 12), ("BQS-OCT", 4), ("YS", 1), ("ms", 1), (3, 1)],
    ],
)
def test_season_follows_the_frequency(freq, season):
    assert metrics.season_length(freq) == season


def test_scores_summarise_a_backtest():
    table = pd.DataFrame(
        {"unique_id": [2, 2, 1, 1], "y": [1.0, np.nan, 0, 0], NAME: [2.0, 9, 3, 0]}
    )
    found = metrics.scores(table)
    assert found["MAE"].to_dict() == {2: 1.0, 1: 1.5, "all": 4 / 3}
    assert found["RMSE"].to_dict() == pytest.approx({2: 1.0, 1: 4.5**0.5, "all": (10 / 3) ** 0.5})
    assert list(found) == ["MAE", "RMSE", "sMAPE"]
    table["scale"] = [2.0, 2.0, 0.0, 0.0]
    table[f"{NAME}-q90"] = table[NAME] + 1
    table[f"{NAME}-q5"] = table[NAME] - 1
    found = metrics.scores(table)
    assert found["MASE"].to_dict() == pytest.approx({2: 0.5, 1: np.nan, "all": 0.5}, nan_ok=True)
    assert found["pinball"][2] == pytest.approx((0.1 * 2 + 0.05 * 0) / 2)
    assert found["coverage"].to_dict() == {2: 1.0, 1: 0.5, "all": 2 / 3}
