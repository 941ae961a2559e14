"""CutoffSplit: folds by time, and its use in scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from forecaster_helpers import TINY
from sklearn.model_selection import GridSearchCV, cross_val_score

from eattn.timeseries import CutoffSplit, EAForecaster
from eattn.timeseries.metrics import mase, seasonal_scale


def frame(**spans) -> pd.DataFrame:
    """Return hourly series by name, each with its first and last hour."""
    rng = np.random.default_rng(0)
    parts = []
    for name, (first, last) in spans.items():
        hours = np.arange(first, last)
        times = pd.Timestamp("2024-01-01") + pd.to_timedelta(hours, "h")
        y = np.sin(hours / 2) + 0.1 * rng.normal(size=len(hours))
        parts.append(pd.DataFrame({"unique_id": name, "ds": times, "y": y}))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("shuffled", [False, True])
def test_folds_cut_all_series_at_the_same_time(shuffled):
    df = frame(a=(0, 40), b=(10, 35), c=(38, 40))
    df = df.sample(frac=1, random_state=0) if shuffled else df
    splitter = CutoffSplit(3, horizon=4, step=2)
    folds = list(splitter.split(df))
    assert len(folds) == splitter.get_n_splits() == 3
    for (train, test), cut in zip(folds, (32, 34, 36), strict=True):
        hour = (df["ds"] - pd.Timestamp("2024-01-01")) // pd.Timedelta("1h")
        assert hour.iloc[train].max() == cut - 1
        assert len(train) == (hour < cut).sum()
        assert set(hour.iloc[test]) == set(range(cut, cut + 4))
        assert "c" not in set(df["unique_id"].iloc[test])  # it has no training rows


def test_same_folds_for_every_form_of_a_series():
    df = frame(a=(0, 20))
    series = df.set_index("ds")["y"]
    forms = [df, df.astype({"ds": str}), df[["ds", "y"]], df.set_index("unique_id")]
    forms += [df.assign(ds=df["ds"].dt.strftime("%d.%m.%Y %H:%M"))]
    forms += [series, series.to_period(), series.to_numpy(), series.tolist()]
    for form in forms:
        folds = list(CutoffSplit(2, horizon=3).split(form))
        assert [(len(train), test.tolist()) for train, test in folds] == [
            (14, [14, 15, 16]),
            (17, [17, 18, 19]),
        ]


def test_invalid_input_raises():
    with pytest.raises(ValueError, match=r"20 different times, but 5 splits .* need at least 21"):
        next(CutoffSplit(5, horizon=4).split(frame(a=(0, 20), b=(0, 20))))
    with pytest.raises(ValueError, match="X must have a column 'ds', got time"):
        next(CutoffSplit().split(pd.DataFrame({"time": [1, 2]})))
    with pytest.raises(ValueError, match="X must have a column 'shop', got ds"):
        next(CutoffSplit(id_col="shop").split(pd.DataFrame({"ds": [1, 2]})))
    with pytest.raises(ValueError, match=r"ds must be a time such as .*, got 'soon'"):
        next(CutoffSplit().split(pd.DataFrame({"ds": ["soon"] * 9})))
    with pytest.raises(ValueError, match="horizon must be at least 1, got 0"):
        CutoffSplit(horizon=0)


def test_grid_search_selects_by_negative_mase():
    df = frame(a=(0, 60), b=(20, 60))
    grid = {"dropout": [0.0, 0.3], "lr": np.array([0.02])}
    splitter = CutoffSplit(2, horizon=3)
    search = GridSearchCV(EAForecaster(**TINY), grid, cv=splitter, error_score="raise").fit(df)
    assert search.best_params_["dropout"] in grid["dropout"]
    best = EAForecaster(**TINY | search.best_params_)
    expected = []
    for train, test in splitter.split(df):
        forecast = best.fit(df.iloc[train]).predict()
        both = df.iloc[test].merge(forecast, on=["unique_id", "ds"])
        groups = df.iloc[train].groupby("unique_id")["y"]
        scale = both["unique_id"].map(groups.agg(lambda y: seasonal_scale(y, 24)))
        expected.append(-mase(both["y"], both["EAForecaster"], scale))
    assert search.best_score_ == pytest.approx(np.mean(expected))
    assert len(search.best_estimator_.predict()) == 6
    names = dict(id_col="shop", time_col="hour", target_col="sales")
    renamed = df.rename(columns={"unique_id": "shop", "ds": "hour", "y": "sales"})
    splitter = CutoffSplit(2, horizon=3, id_col="shop", time_col="hour")
    again = GridSearchCV(EAForecaster(**TINY), grid, cv=splitter, error_score="raise")
    assert again.fit(renamed, **names).best_score_ == search.best_score_
    scores = cross_val_score(EAForecaster(**TINY), df["y"].to_numpy()[:60], cv=splitter)
    assert np.isfinite(scores).all()
