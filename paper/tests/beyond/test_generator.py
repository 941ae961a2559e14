"""Synthetic series: reproducible, of every kind, and with the seasons that they are given."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from paper.beyond.pretraining import generator
from paper.beyond.pretraining.generator import draw_seasons, generate, season, smooth


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_seed_determines_the_series():
    first, again, other = (generate(rng(seed), 200, (12,)) for seed in (3, 3, 4))
    assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("length", [10, 50, 1000])
@pytest.mark.parametrize("seasons", [(), (2,), (24, 168), (365,)])
def test_series_of_any_length_are_finite_where_known(length, seasons):
    for seed in range(40):
        y = generate(rng(seed), length, seasons)
        assert y.shape == (length,)
        assert np.isfinite(y[0]) and not np.isinf(y).any()


def test_all_kinds_of_series_occur():
    found = [generate(rng(seed), 300, (12,)) for seed in range(400)]
    known = [y[np.isfinite(y)] for y in found]
    assert any(np.isnan(y).any() for y in found)
    assert any((y == 0).mean() > 0.5 for y in known)  # intermittent demand
    assert any((y > 0).all() for y in known) and any((y < 0).all() for y in known)
    assert any((y == y.max()).mean() > 0.1 for y in known)  # saturated
    sizes = [np.log10(np.abs(y).mean() + 1e-12) for y in known]
    assert max(sizes) - min(sizes) > 5


@pytest.mark.parametrize("period", [2, 7, 24])
def test_a_season_repeats(period):
    alike = []
    for seed in range(50):
        y = season(rng(seed), 10 * period, period)
        assert y.shape == (10 * period,)
        alike.append(np.corrcoef(y[period:], y[:-period])[0, 1])
    assert np.median(alike) > 0.95


def test_smooth_processes_have_unit_size_and_various_length_scales():
    changes = []
    for seed in range(50):
        y = smooth(rng(seed), 500)
        assert np.mean(y) == pytest.approx(0, abs=1e-9) and np.std(y) == pytest.approx(1)
        changes.append(np.abs(np.diff(y)).mean())
    assert min(changes) < 0.02 and max(changes) > 0.2


def test_declared_seasons_are_mostly_those_of_the_series():
    pairs = [draw_seasons(rng(seed)) for seed in range(2000)]
    usual = [present for present, declared in pairs if present == declared]
    assert 0.8 < len(usual) / len(pairs) < 0.95
    assert any(present and not declared for present, declared in pairs)
    assert any(declared and not present for present, declared in pairs)
    assert set(usual) >= set(generator.FREQUENCIES)
    assert all(list(declared) == sorted(declared) for _, declared in pairs)
