"""Choice between the model and simple forecasts for each series."""

import numpy as np
import pandas as pd
import pytest
from forecaster_helpers import LEVELS, random_predictor, read
from numpy.testing import assert_allclose, assert_array_equal

from eattn.timeseries.calibration import Calibration
from eattn.timeseries.choice import (
    best_candidates,
    choose,
    fit_report,
    rule_quantiles,
)
from eattn.timeseries.covariates import Covariates
from eattn.timeseries.features import rule_names
from eattn.timeseries.fitting import make_table
from eattn.timeseries.windows import validation_windows

HORIZON, SEASONS, MODEL = 5, (4,), "trained"


def four_series() -> list:
    """Return a seasonal series, a random walk, a line, and a short series."""
    rng = np.random.default_rng(0)
    values = {
        "season": np.tile([0.0, 5, 1, -4], 50) + 0.3 * rng.normal(size=200),
        "walk": rng.normal(size=200).cumsum(),
        "line": np.arange(200.0) + 0.01 * rng.normal(size=200),
        "short": rng.normal(size=8),
    }
    parts = [
        pd.DataFrame({"unique_id": name, "ds": range(len(y)), "y": y}) for name, y in values.items()
    ]
    return read(pd.concat(parts))


@pytest.fixture(scope="module")
def windows():
    series = four_series()
    table = make_table(series, (), Covariates(), seasons=SEASONS, horizon=HORIZON)
    return validation_windows(table, np.array([150, 150, 150, 0]), 1000)


def choose_for(model, windows):
    return choose(model, windows, Calibration(LEVELS, HORIZON), 4, name=MODEL)


def untrained(windows):
    model = random_predictor(four_series(), seasons=SEASONS, horizon=HORIZON).model.float()
    for layer in (model.head, model.direct):
        layer.weight.data.zero_()
    return model


def test_series_use_the_best_simple_forecast(windows):
    model = untrained(windows)
    model.direct.weight.data[4 + 5 + 1, 0] = 30.0  # the shift of the median
    choice = choose_for(model, windows)
    names = [candidate.name for candidate in choice.candidates]
    assert names == [MODEL, "seasonal naive", "naive", "drift"]
    chosen = dict(zip("abcd", choice.best, strict=True))
    report = fit_report(chosen, choice.candidates, choice.losses)
    assert list(report) == ["unique_id", "choice", *names]
    season, walk, line, short = report["choice"]
    assert (season, line, short) == ("seasonal naive", "drift", MODEL)
    assert walk in ("naive", "drift")
    assert report["unique_id"].tolist() == list("abcd")
    losses = report[names].to_numpy()
    assert_array_equal(np.isnan(losses).all(1), [False, False, False, True])
    assert_array_equal(losses[:3].argmin(1), choice.best[:3])


def test_model_is_preferred_unless_clearly_worse(windows):
    choice = choose_for(untrained(windows), windows)  # equals seasonal naive
    assert_allclose(choice.losses[:3, 0], choice.losses[:3, 1], rtol=1e-3)
    assert choice.best[0] == 0
    assert choice.best[1] in (2, 3)


def test_many_windows_of_a_series_outweigh_the_other_series():
    losses = np.array([[1.0, 0.8]] + 9 * [[1.0, 1.5]] + [[np.nan, np.nan]])
    few, many = np.ones(11), np.full(11, 50.0)
    assert best_candidates(losses, few).tolist() == [0] * 11
    assert best_candidates(losses, many).tolist() == [1] + [0] * 10
    assert best_candidates(losses[:1], few[:1]).tolist() == [1]  # there are no other series
    assert best_candidates(losses[-1:], few[:1]).tolist() == [0]


def test_intervals_of_simple_forecasts_are_calibrated(windows):
    choice = choose_for(untrained(windows), windows)
    for candidate in choice.candidates:
        assert candidate.factors.shape == (4, len(LEVELS))  # steps 1, 2, 4 and 5
    naive = choice.candidates[2].factors
    assert np.abs(naive).max() > 0.1


def test_quantiles_of_simple_forecasts_are_centred_and_widen(windows):
    model, names = untrained(windows), rule_names(windows.table.seasons)
    rules = np.zeros((2, len(names)))  # of two steps ahead
    rules[:, 0], rules[:, names.index("last")] = (2.0, 7.0), (3.0, 3.0)
    options = dict(move=np.array(0.5), steps=np.array([1, 4]), model=model)
    season = rule_quantiles(rules, 0, **options)
    assert_allclose(season[:, LEVELS.index(0.5)], [2, 7])
    assert_allclose(season[:, LEVELS.index(0.9)], [2 + 1.2816, 7 + 1.2816], atol=1e-3)
    walk = rule_quantiles(rules, names.index("last"), **options)
    deviation = 0.5 * np.sqrt(np.pi / 2)  # of a normal distribution with this mean size
    expected = 3 + 1.2816 * deviation * np.array([1, 2])
    assert_allclose(walk[:, LEVELS.index(0.9)], expected, atol=1e-3)
