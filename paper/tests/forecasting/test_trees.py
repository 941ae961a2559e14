"""LightGBM with lags: it sees the past and covariates of the future, and nothing else."""

import numpy as np
import pytest
from forecasting_helpers import wave

pytest.importorskip("lightgbm", reason='needs pip install "eattn[study]"')

from paper.forecasting.trees import Trees


def test_a_season_is_continued():
    values = [wave(120, 12, seed) for seed in range(3)]
    found = Trees(6, [12]).fit([series[:-6] for series in values])
    errors = found.predict([series[:-6] for series in values]) - [s[-6:] for s in values]
    assert np.abs(errors).mean() < 0.25


def test_covariates_explain_what_lags_cannot():
    rng = np.random.default_rng(0)
    known = rng.normal(size=(400, 1))
    values = 5 * known[:, 0] + rng.normal(0, 0.1, 400)
    past, target = [values[:-8]], values[-8:]
    blind = Trees(8, [4]).fit(past).predict(past)[0]
    seeing = Trees(8, [4]).fit(past, [known]).predict(past, [known])[0]
    assert np.abs(seeing - target).mean() < 0.3 * np.abs(blind - target).mean()


def test_features_do_not_depend_on_later_values():
    trees, series = Trees(5, [4, 8]), wave(40, 4)
    trees.scales = [1.0]
    points, steps = np.array([1, 3, 20, 20]), np.array([0, 2, 0, 4])
    known = [np.arange(80.0).reshape(40, 2)]
    before, base = trees._features(0, series, known, points, steps)
    for row, point in enumerate(points):
        later = series.copy()
        later[point:] = 1e9
        after, other = trees._features(0, later, known, points[[row]], steps[[row]])
        assert np.array_equal(before[[row]], after, equal_nan=True)
        assert other[0] == base[row]


def test_gaps_and_constant_series_give_numbers():
    series = wave(60, 4)
    series[20:30] = np.nan
    found = Trees(3, [4]).fit([series, np.full(30, 2.0)]).predict([series, np.full(30, 2.0)])
    assert np.isfinite(found).all()
    assert found[1] == pytest.approx([2, 2, 2], abs=1)
