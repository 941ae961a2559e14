"""Anomaly scores: in [0, 1], high for spikes, and relative to earlier surprises."""

import math

import numpy as np
import pytest

from eattn.timeseries.anomalies import START

LOW, HIGH = -1.28, 1.28  # of a standard normal distribution


def score_all(values, state=START, low=LOW, high=HIGH) -> tuple[list[float], object]:
    scores = []
    for y in values:
        state, score = state.score(float(y), low, 0.0, high)
        scores.append(score)
    return scores, state


def normal(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size)


def test_scores_lie_between_0_and_1():
    wild = np.concatenate([normal(300), 1e12 * normal(50), np.zeros(50), [1e99, -1e99]])
    scores, state = score_all(wild)
    assert all(0 <= score <= 1 for score in scores)
    assert all(map(math.isfinite, state))


def test_usual_values_have_low_scores():
    scores, _ = score_all(normal(2000))
    assert np.quantile(scores[100:], 0.99) < 0.4
    assert np.mean(scores[100:]) < 0.1


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("size", [15, 1e12])
def test_spikes_have_high_scores(side, size):
    usual, state = score_all(normal(500))
    [score], _ = score_all([side * size], state)
    assert score > 0.7 and score > max(usual)


def test_level_shift_is_detected_and_then_becomes_usual():
    _, state = score_all(normal(500))
    scores, _ = score_all(6 + normal(3000, 1), state)
    assert max(scores[:5]) > 0.7
    assert np.mean(scores[-500:]) < 0.2


def test_frequent_surprises_lower_the_score():
    calm, noisy = normal(500), normal(500)
    noisy[::10] = 12
    [after_calm], _ = score_all([12], score_all(calm)[1])
    [after_noisy], _ = score_all([12], score_all(noisy)[1])
    assert after_noisy < after_calm / 2


def test_value_outside_the_range_is_unusual_even_if_forecast():
    _, state = score_all(normal(500))
    inside, outside = [state.score(y, y - 1, y, y + 1)[1] for y in (1.0, 12.0)]
    assert inside < 0.1 and outside > 0.7


def test_first_values_have_no_range():
    _, state = score_all(np.zeros(5))
    assert state.score(9.0, 8.0, 9.0, 10.0)[1] < 0.1


def test_asymmetric_forecasts_have_asymmetric_scores():
    _, state = score_all(normal(500))
    [above], _ = score_all([4], state, low=-8)
    [below], _ = score_all([-4], state, low=-8)
    assert below < above


def test_zero_width_is_not_divided_by():
    [score], state = score_all([0.0], low=0.0, high=0.0)
    assert 0 <= score <= 1 and state.values == 1
    [score], _ = score_all([1.0], low=0.0, high=0.0)
    assert 0 <= score <= 1
