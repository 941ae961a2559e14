"""Simple forecasts of any step ahead, and tokens that do not depend on level and unit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eattn.timeseries.features import (
    FARTHEST,
    STEP_FEATURES,
    look_ahead,
    read_tokens,
    rows_kept,
    rule_names,
    step_features,
)
from eattn.timeseries.tracking import SCALE, VALUE, follow

STEPS = np.arange(1, 31)
SEASONS = (4, 12)


def series(length: int = 60, seed: int = 0) -> np.ndarray:
    t = np.arange(length)
    rng = np.random.default_rng(seed)
    return 20 + 0.1 * t + 3 * np.sin(np.pi * t / 6) + rng.normal(size=length)


def at_end(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.array([len(rows) - 1]), np.array([0])


def forecasts(y, seasons=SEASONS, steps=STEPS) -> dict[str, np.ndarray]:
    """Return the simple forecasts after the last value in its unit, by name."""
    rows, _ = follow(np.asarray(y).tolist(), seasons)
    found = look_ahead(rows, *at_end(rows), steps, seasons)
    assert found.shape == (1, len(steps), len(rule_names(seasons)))
    assert step_features(steps).shape == (len(steps), STEP_FEATURES)
    values = rows[-1, VALUE] + rows[-1, SCALE] * found[0]
    return dict(zip(rule_names(seasons), values.T, strict=True))


def seasonal_naive(y, m: int, seasons_back: int = 1) -> np.ndarray:
    """Repeat the last season, or an earlier one."""
    last = len(y) - m * seasons_back
    return np.array([y[last + (h - 1) % m] for h in STEPS])


def test_first_rule_is_the_shortest_season_or_the_last_value():
    assert rule_names(SEASONS)[:2] == ("season 4", "season before 4")
    assert rule_names(())[0] == "last"
    assert len(rule_names(SEASONS)) == len(set(rule_names(SEASONS))) == 15


@pytest.mark.parametrize("length", [24, 25, 35, 60])
def test_season_is_repeated_for_any_step(length):
    y = series(length)
    found = forecasts(y)
    for m in SEASONS:
        assert_allclose(found[f"season {m}"], seasonal_naive(y, m))
        assert_allclose(found[f"season before {m}"], seasonal_naive(y, m, 2))
    assert_allclose(found["last"], y[-1])


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7, 8, 11, 12])
def test_incomplete_season_is_replaced_by_the_last_value(length):
    y = series(length)
    found = forecasts(y)
    for m in SEASONS:
        once, twice = (np.full(len(STEPS), y[-1]) for _ in range(2))
        for i, h in enumerate(STEPS):
            back = length - m + (h - 1) % m
            once[i] = y[back] if back >= 0 else y[-1]
            twice[i] = y[back - m] if back >= m else once[i]
        assert_allclose(found[f"season {m}"], once)
        assert_allclose(found[f"season before {m}"], twice)


def test_drift_continues_the_line_from_first_to_last_value():
    y = series()
    slope = (y[-1] - y[0]) / (len(y) - 1)
    assert_allclose(forecasts(y)["drift"], y[-1] + slope * STEPS)
    line = forecasts(2.0 * np.arange(100), ())
    assert_allclose(line["trend"], 198 + 2 * STEPS, rtol=0.01)
    assert_allclose(line["drift"], 198 + 2 * STEPS)


def test_trend_ends_after_many_steps():
    steps = np.array([200, 300, 10_000])
    found = forecasts(2.0 * np.arange(100), (), steps)["trend"]
    assert found[0] == found[1] == found[2]


def test_profile_forecasts_a_periodic_series():
    y = 10 + np.tile([0.0, 3, -1, -2], 60)
    found = forecasts(y, (4,))
    for name in ("season 4", "season before 4"):
        assert_allclose(found[name], seasonal_naive(y, 4))
    for name in ("profile 4", "shifted season 4", "scaled season 4"):
        assert_allclose(found[name], seasonal_naive(y, 4), atol=0.5)


def test_growing_seasons_are_scaled():
    t = np.arange(240)
    y = 1.01**t * (10 + 3 * np.sin(np.pi * t / 6))
    truth = (1.01 ** (240 + t) * (10 + 3 * np.sin(np.pi * (240 + t) / 6)))[:12]
    found = forecasts(y, (12,), np.arange(1, 13))
    error = {name: np.abs(x - truth).mean() for name, x in found.items()}
    assert error["scaled season 12"] < error["shifted season 12"] < error["season 12"]
    negative = forecasts(-y, (12,), np.arange(1, 13))
    assert_array_equal(negative["scaled season 12"], negative["shifted season 12"])


def test_series_one_after_the_other_do_not_mix():
    parts = [follow(series(n, seed).tolist(), SEASONS)[0] for seed, n in enumerate((9, 30))]
    rows = np.concatenate(parts)
    at, first = np.array([[3, 8], [12, 38]]), np.array([[0, 0], [9, 9]])
    together = look_ahead(rows, at, first, STEPS, SEASONS)
    tokens = read_tokens(rows, at, first, SEASONS)
    for number, (part, start) in enumerate(zip(parts, (0, 9), strict=True)):
        own = at[number] - start
        alone = look_ahead(part, own, np.zeros_like(own), STEPS, SEASONS)
        assert_array_equal(together[number], alone)
        assert_array_equal(tokens[number], read_tokens(part, own, np.zeros_like(own), SEASONS))


@pytest.mark.parametrize("horizon", [1, 5, 30])
def test_kept_rows_are_enough_for_a_stream(horizon):
    rows, _ = follow(series(100).tolist(), SEASONS)
    kept = rows[-rows_kept(SEASONS, horizon) - 1 :]  # and a new one
    steps = np.arange(1, horizon + 1)
    for back in (0, horizon):  # forecasts of the new value begin up to a horizon before
        at, first = np.array([len(rows) - 1 - back]), np.array([0])
        own = np.array([len(kept) - 1 - back])
        expected = look_ahead(rows, at, first, steps, SEASONS)
        assert_array_equal(look_ahead(kept, own, first, steps, SEASONS), expected)
    at, own = np.array([len(rows) - 1]), np.array([len(kept) - 1])
    expected = read_tokens(rows, at, first, SEASONS)
    assert_array_equal(read_tokens(kept, own, first, SEASONS), expected)


@pytest.mark.parametrize(("a", "b"), [(1, 1000), (1e-3, 0), (1e6, 0), (37, -50)], ids=str)
def test_features_do_not_depend_on_level_and_unit(a, b):
    def features(y):
        rows, _ = follow(y.tolist(), SEASONS)
        at = np.arange(1, len(y))  # the scale of a single value is that of a constant
        first = np.zeros_like(at)
        rules = look_ahead(rows, at, first, STEPS, SEASONS)
        return read_tokens(rows, at, first, SEASONS), rules

    y = series()
    (tokens, rules), (other, other_rules) = features(y), features(a * y + b)
    level = 4  # level in scales, for counts and other series whose zero has a meaning
    relative = [i for i, name in enumerate(rule_names(SEASONS)) if name.startswith("scaled")]
    if b:
        assert np.abs(tokens - other)[:, level].max() > 0.01
        tokens, other = (np.delete(x, level, -1) for x in (tokens, other))
        rules, other_rules = (np.delete(x, relative, -1) for x in (rules, other_rules))
    assert_allclose(other, tokens, rtol=1e-5, atol=1e-5)
    assert_allclose(other_rules, rules, rtol=1e-5, atol=1e-5)


def test_differences_are_bounded():
    y = np.concatenate([np.zeros(50), [1e12, 1e12]])
    y[:50] = 1e-6 * np.arange(50)
    rows, _ = follow(y.tolist(), SEASONS)
    at, first = np.arange(len(y)), np.zeros(len(y), np.int64)
    steps = np.array([1, 10**6])
    rules, features = look_ahead(rows, at, first, steps, SEASONS), step_features(steps)
    assert np.abs(rules).max() <= FARTHEST
    assert np.isfinite(features).all() and np.isfinite(read_tokens(rows, at, first, SEASONS)).all()
