"""Rows of a series: causal, the same in any chunks, and robust."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eattn.timeseries.features import rows_kept
from eattn.timeseries.tracking import (
    DRIFT,
    FAST,
    MOVE,
    SCALE,
    SLOPE,
    SLOW,
    VALUE,
    follow,
    level_column,
    profile_column,
)

ALL_SEASONS = [(), (7,), (4, 12)]
seasonal = pytest.mark.parametrize("seasons", ALL_SEASONS, ids=str)


def series(length: int = 100) -> np.ndarray:
    """Return a noisy seasonal series with a trend."""
    t = np.arange(length)
    return (
        5
        + 0.05 * t
        + np.sin(2 * np.pi * t / 7)
        + 0.3 * np.random.default_rng(0).normal(size=t.size)
    )


def changed(y: np.ndarray, values: dict) -> np.ndarray:
    y = y.copy()
    for at, value in values.items():
        y[at] = value
    return y


def rows_of(y, seasons=()) -> np.ndarray:
    return follow(np.asarray(y).tolist(), seasons)[0]


def awkward() -> np.ndarray:
    """Return a series with gaps, an outlier and a level shift."""
    y = changed(series(), {5: np.nan, 30: np.nan, 31: np.nan, 50: 1e12, 99: np.nan})
    y[70:] += 1000
    return y


def test_levels_start_as_means():
    y = series(6)
    row = rows_of(y, (4,))[-1]
    assert row[VALUE] == y[-1]
    assert_allclose(row[[SLOW, level_column(0)]], y.mean())
    assert_allclose(row[MOVE], np.abs(np.diff(y)).mean())
    assert_allclose(row[DRIFT], (y[-1] - y[0]) / 5)
    assert abs(row[FAST] - y[-1]) < abs(row[SLOW] - y[-1])


def test_scale_is_the_mean_seasonal_difference():
    y = series(30)
    found = rows_of(y, (7,))[-1, SCALE]
    differences = np.abs(y[7:] - y[:-7])
    first = np.abs(np.diff(y[:7]))  # before a season is complete
    assert_allclose(found, np.concatenate([first, differences]).mean(), rtol=0.1)
    periodic = rows_of(np.tile([0.0, 3, -1, -2], 60), (4,))  # whose differences are 0
    assert 0.1 < periodic[-1, SCALE] < 1


def test_slope_follows_a_trend():
    assert_allclose(rows_of(3.0 * np.arange(200))[-1, SLOPE], 3.0, rtol=0.01)
    assert_allclose(rows_of(3.0 * np.arange(200))[-1, DRIFT], 3.0)


def test_profile_is_the_deviation_at_a_phase():
    pattern = np.array([0.0, 3.0, -1.0, -2.0])
    rows = rows_of(10 + np.tile(pattern, 60), (4,))
    assert_allclose(rows[-4:, profile_column(0)], pattern, atol=0.5)
    start = rows_of([1.0, 5, 2, 3, 6, 8], (4,))
    level, profile = start[:, level_column(0)], start[:, profile_column(0)]
    assert_allclose(profile[:4], np.array([1.0, 5, 2, 3]) - level[:4])
    mixed = profile[0] + 4 / 5 * (6 - level[4] - profile[0])  # of the first two seasons
    assert_allclose(profile[4], mixed)


@seasonal
@pytest.mark.parametrize("at", [10, 40, 69, 98])
def test_rows_do_not_depend_on_later_values(seasons, at):
    y = awkward()
    later = np.random.default_rng(1).normal(0, 1e6, len(y))
    later[[-8, -1]] = np.nan, 1e12
    assert_array_equal(
        rows_of(np.where(np.arange(len(y)) <= at, y, later), seasons)[: at + 1],
        rows_of(y, seasons)[: at + 1],
    )


@seasonal
@pytest.mark.parametrize("sizes", [[1], [2, 3, 5], [17]], ids=str)
def test_rows_are_the_same_in_any_chunks(seasons, sizes):
    y = awkward().tolist()
    expected, whole = follow(y, seasons)
    found, track = follow(y[:10], seasons)  # these are compared with each other
    parts = [found]
    while (start := sum(map(len, parts))) < len(y):
        track = replace(track, rows=track.rows[-rows_kept(seasons, 3) :])
        found, track = follow(y[start : start + sizes[len(parts) % len(sizes)]], seasons, track)
        parts.append(found)
    assert_array_equal(np.concatenate(parts), expected)
    for name in ("steps", "known", "first", "spikes", "held"):
        assert getattr(track, name) == getattr(whole, name)


@seasonal
def test_missing_value_repeats_the_row(seasons):
    y = changed(series(), {50: np.nan})
    rows, track = follow(y.tolist(), seasons)
    kept = [c for c in range(rows.shape[1]) if c != DRIFT]
    kept = [c for c in kept if c not in [profile_column(s) for s in range(len(seasons))]]
    assert_array_equal(rows[50, kept], rows[49, kept])
    for number, m in enumerate(seasons):
        assert rows[50, profile_column(number)] == rows[50 - m, profile_column(number)]
    assert (track.steps, track.known) == (100, 99)


@seasonal
@pytest.mark.parametrize("at", [1, 4, 9, 10, 11, 40, 98, 99])
@pytest.mark.parametrize("value", [1e12, -1e12, 1e99])
def test_outlier_is_treated_as_missing(seasons, at, value):
    rows, track = follow(changed(series(), {at: value}).tolist(), seasons)
    expected, clean = follow(changed(series(), {at: np.nan}).tolist(), seasons)
    assert_array_equal(rows, expected)
    assert track.spikes == (at >= 10) and clean.spikes == 0


@seasonal
def test_outlier_in_the_first_value_is_replaced_by_the_second(seasons):
    y = series()
    expected = rows_of(changed(y, {0: y[1]}), seasons)
    assert_array_equal(rows_of(changed(y, {0: 1e12}), seasons), expected)


@pytest.mark.parametrize(
    "start",
    [
        [0.0, 0, 0, 3, 0, 0, 1, 0, 0, 0],
        [0.0, 5, 4, 3],
        [0.0, 0.5, 0.8],
        [5.0] * 9 + [6],
        [1.0, 1e12],
    ],
    ids=str,
)
def test_usual_first_values_are_kept(start):
    assert_array_equal(rows_of(start)[:, VALUE], start)


@seasonal
def test_level_shift_is_accepted_at_the_second_value(seasons):
    y = series()
    y[60:] += 1e6
    rows, track = follow(y.tolist(), seasons)
    assert rows[60, VALUE] == y[59]
    assert_array_equal(rows[61:, VALUE], y[61:])
    assert (track.spikes, track.held) == (1, False)


def test_repeated_outliers_are_replaced():
    y = changed(series(), {30: 1e12, 50: 1e12, 70: -1e12})
    rows, track = follow(y.tolist(), (7,))
    assert np.abs(rows).max() < 100
    assert track.spikes == 3


def test_rare_events_are_kept_after_the_first():
    y = np.zeros(300)
    y[20::17] = 5
    rows = rows_of(y, (7,))
    assert_array_equal(np.flatnonzero(rows[:, VALUE] != y), [20])
    assert rows[-1, SCALE] > 0.1


@seasonal
@pytest.mark.parametrize(
    "y",
    [np.zeros(200), np.full(200, -7.1), np.full(200, 5e9), np.tile(np.arange(12.0), 20)],
    ids=["zero", "constant", "large", "periodic"],
)
def test_scale_is_positive(seasons, y):
    scale = rows_of(y, seasons)[:, SCALE]
    assert (scale > 0).all() and np.isfinite(scale).all()
    assert (y + scale != y).all()  # intervals have a width


@seasonal
def test_rows_scale_with_the_series(seasons):
    rows, other = rows_of(awkward(), seasons), rows_of(-2 + 16 * awkward(), seasons)
    levels = [VALUE, FAST, SLOW, *(level_column(s) for s in range(len(seasons)))]
    differences = [c for c in range(rows.shape[1]) if c not in levels]
    assert_allclose(other[:, levels], -2 + 16 * rows[:, levels], rtol=1e-9)
    assert_allclose(other[1:, differences], 16 * rows[1:, differences], rtol=1e-6, atol=1e-9)
