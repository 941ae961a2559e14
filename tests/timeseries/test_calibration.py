"""Calibration of quantiles: coverage in the long run, order and width."""

from statistics import NormalDist

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eattn.timeseries.calibration import (
    LARGEST,
    PRIOR,
    RATE,
    Calibration,
    all_levels,
    check_quantiles,
)

LEVELS = all_levels((0.025,))
NORMAL = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
HALF = LEVELS.index(0.5)
ONE = Calibration(LEVELS, 1)


def stream(values, quantiles) -> tuple[np.ndarray, np.ndarray]:
    """Calibrate forecasts one by one; return the calibrated quantiles and the last factors."""
    factors, found = ONE.initial(), []
    for y, q in zip(values, quantiles, strict=True):
        found.append(ONE.apply_one(factors[0], q))
        factors = ONE.update(factors, 0, found[-1], y)
    return np.array(found), factors


def normal(size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=size)


def share_below(values: np.ndarray, found: np.ndarray) -> np.ndarray:
    return (values[:, None] < found).mean(0)


def test_levels_are_trained_in_addition_to_deciles():
    assert LEVELS == (0.025, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert all_levels((0.1, 0.5)) == all_levels(())


@pytest.mark.parametrize("wrong", [0.1, "x", [None], (0.0, 0.5), (0.5, 1.0), (0.1, 0.1)], ids=str)
def test_invalid_quantiles_raise(wrong):
    with pytest.raises((TypeError, ValueError), match="quantiles must be"):
        check_quantiles(wrong)
    assert check_quantiles(None) == ()
    assert check_quantiles(np.array([0.9, 0.1])) == (0.1, 0.9)


def test_factors_exist_for_powers_of_two():
    assert Calibration(LEVELS, 12).steps.tolist() == [1, 2, 4, 8, 12]
    assert Calibration(LEVELS, 8).steps.tolist() == [1, 2, 4, 8]
    assert Calibration(LEVELS, 1).steps.tolist() == [1]


def test_factors_are_interpolated_between_steps():
    calibration = Calibration(LEVELS, 12)
    factors = np.log([[1.0], [2], [4], [8], [16]]) + np.zeros(len(LEVELS))
    widths = calibration.apply(factors, np.tile(NORMAL, (12, 1)))[:, -1] / NORMAL[-1]
    assert_allclose(widths[[0, 1, 3, 7, 11]], [1, 2, 4, 8, 16])
    assert 2 < widths[2] < 4 < widths[4] < widths[5] < 8
    short = calibration.apply(factors, np.tile(NORMAL, (3, 1)))
    assert_allclose(short[:, -1] / NORMAL[-1], widths[:3])


@pytest.mark.parametrize("width", [0.2, 1.0, 5.0])
def test_fit_corrects_the_width(width):
    y = normal(40_000)[:, None]
    factors = ONE.fit(np.tile(width * NORMAL, (40_000, 1, 1)), y)
    expected = np.delete(np.full(len(LEVELS), 1 / width), HALF)
    # The standard error of the median and its neighbours is large relative to their distance.
    wide = np.abs(NORMAL) > 0.5
    assert_allclose(np.exp(factors[0][wide]), expected[0], rtol=0.08)
    assert factors[0, HALF] == 0


def test_few_windows_change_the_quantiles_little():
    y = np.array([[3.0], [-3.0], [np.nan]])
    factors = ONE.fit(np.tile(NORMAL, (3, 1, 1)), y)
    assert 1 < np.exp(factors[0, -1]) < np.exp(np.log(20) * 2 / (2 + PRIOR))
    assert_array_equal(ONE.fit(np.tile(NORMAL, (1, 1, 1)), np.array([[np.nan]])), 0)
    assert_array_equal(ONE.fit(np.empty((0, 1, len(LEVELS))), np.empty((0, 1))), 0)


# Unless a factor reaches its bound, the share of values outside its quantile deviates from the
# right one by (last - first factor) / (RATE * count), and factors lie in [-LARGEST, LARGEST].
COUNT = 6000
BOUND = 2 * LARGEST / (RATE * COUNT)  # 0.02


@pytest.mark.parametrize("width", [0.2, 1.0, 5.0])
def test_coverage_is_reached_for_wrong_widths(width):
    y = normal(COUNT)
    found, _ = stream(y, np.tile(width * NORMAL, (COUNT, 1)))
    assert_allclose(share_below(y, found), LEVELS, atol=BOUND)
    late = share_below(y[1000:], found[1000:])
    assert_allclose(late, LEVELS, atol=0.02)


def test_coverage_is_kept_while_a_series_drifts():
    t = np.arange(COUNT)
    speed = 1.5 / 600  # largest change of the log deviation, which lies in [-1.5, 1.5]
    y = np.exp(1.5 * np.sin(t / 600)) * normal(COUNT)
    found, _ = stream(y, np.tile(NORMAL, (COUNT, 1)))
    assert_allclose(share_below(y, found), LEVELS, atol=BOUND)
    inside = (found[:, LEVELS.index(0.1)] < y) & (y < found[:, LEVELS.index(0.9)])
    # Log factors grow as fast if the share outside each side is `speed / RATE` too large. The
    # standard error in 500 values is 0.018.
    mean = np.ones(500) / 500
    assert np.convolve(inside, mean, "valid").min() > 0.8 - 2 * speed / RATE - 0.054
    fixed = (NORMAL[LEVELS.index(0.1)] < y) & (y < NORMAL[LEVELS.index(0.9)])
    assert np.convolve(fixed, mean, "valid").min() < 0.4


def test_skewed_errors_get_skewed_intervals():
    y = np.random.default_rng(0).exponential(size=COUNT) - np.log(2)  # the median is 0
    found, _ = stream(y, np.tile(NORMAL, (COUNT, 1)))
    assert_allclose(share_below(y, found), LEVELS, atol=BOUND)
    low, high = found[-1, [LEVELS.index(0.1), LEVELS.index(0.9)]]
    assert high > 2 * -low


def test_factors_are_bounded():
    for far, bound in ((1e12, LARGEST), (0.0, -LARGEST)):
        _, factors = stream(np.full(3000, far), np.tile(NORMAL, (3000, 1)))
        assert np.isfinite(factors).all() and np.abs(factors).max() <= LARGEST
        assert factors[0, -1] == bound


def test_one_outlier_changes_the_width_little():
    y = np.append(normal(500), 1e12)
    _, factors = stream(y, np.tile(NORMAL, (501, 1)))
    _, before = stream(y[:-1], np.tile(NORMAL, (500, 1)))
    assert np.abs(factors - before).max() <= RATE


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_never_cross_and_keep_a_width(seed):
    calibration, rng = Calibration(LEVELS, 12), np.random.default_rng(seed)
    factors = rng.uniform(-LARGEST, LARGEST, (4, 5, len(LEVELS)))
    raw = 50 + np.cumsum(rng.uniform(0.01, 1, (4, 12, len(LEVELS))), -1)
    found = calibration.apply(factors, raw)
    assert (np.diff(found) >= 0).all()
    assert_array_equal(found[..., HALF], raw[..., HALF])
    assert (found[..., -1] > found[..., HALF]).all() and (found[..., HALF] > found[..., 0]).all()


def test_bound_keeps_medians_inside_and_widths_positive():
    raw = NORMAL + np.array([[-5.0], [-1.0], [0.5], [9.0]])
    found = ONE.bound(raw, 0.0)
    assert (found >= 0).all() and (np.diff(found) >= 0).all()
    assert_array_equal(found[:, HALF], [0, 0, 0.5, 9])
    assert_allclose(found[0, -1], NORMAL[-1])
    assert_array_equal(found[3], raw[3])
    assert_array_equal(ONE.bound(raw, -np.inf), raw)
    each = ONE.bound(raw[:, None], np.array([0, -np.inf, 0, 0])[:, None, None])
    assert_array_equal(each[1, 0], raw[1])
