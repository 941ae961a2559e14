"""Input of the classifier: scaled and split arrays, and validation samples."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from eattn.timeseries.arrays import (
    fit_scaler,
    pad,
    split_long,
    to_tensors,
    trim,
    validation_samples,
)

NAN = np.nan


def scaled(X, like=None, flag_missing=False):
    scaler, _ = fit_scaler(X if like is None else like)
    return to_tensors(X, scaler, flag_missing=flag_missing)


def test_channels_are_standardised_over_observed_values():
    rng = np.random.default_rng(0)
    X = list(rng.normal(size=(50, 3, 20)) * [[1], [1e-6], [1e9]] + [[0], [7], [-1e9]])
    X[0][1, 4] = NAN
    assert fit_scaler(X)[1]
    values = torch.cat(scaled(X, flag_missing=True)).double().numpy()
    assert_allclose(values[:, :3].mean(0), 0, atol=1e-4)
    assert_allclose(values[:, :3].std(0), 1, atol=1e-3)
    assert_array_equal((values[:, 3:] == 0).sum(0), [0, 1, 0])


def test_missing_values_are_zero_and_flagged():
    X = [np.array([[1.0, NAN, 3.0], [2.0, 2.0, 2.0]])]
    assert_array_equal(scaled(X, flag_missing=True)[0], [[-1, 0, 1, 1], [0, 0, 0, 1], [1, 0, 1, 1]])
    assert_array_equal(scaled(X, like=[X[0][:, ::2]])[0], [[-1, 0], [0, 0], [1, 0]])


def test_outliers_are_clipped_and_constants_scale_by_magnitude():
    [far] = scaled([np.array([[1e308, -1e308, 50.0]])], like=[np.array([[-1, 1]], np.int8)])
    assert_array_equal(far, [[100], [-100], [50]])
    constant = [np.full((1, 1000), 0.1)]
    assert fit_scaler(constant)[0].std[0] == pytest.approx(0.1)
    assert_allclose(scaled(constant)[0], 0, atol=1e-12)


def test_trim_keeps_gaps_and_drops_unobserved_ends():
    sample = np.array([[NAN, 1, NAN, NAN, 4, NAN], [NAN, NAN, NAN, 3, NAN, NAN]])
    assert_array_equal(trim(sample), sample[:, 1:5])
    assert trim(sample[:, :1]).shape == (2, 0)


def test_pad_masks_unequal_and_empty_series():
    long, short, empty = (torch.ones(length, 2) for length in (3, 1, 0))
    x, mask = pad([long, short, empty])
    assert x.shape == (3, 3, 2) and x.sum() == 8
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert pad([long, long])[1] is None
    x, mask = pad([empty, empty])
    assert x.shape == (2, 1, 2) and not mask.any()


@pytest.mark.parametrize("length", [1, 7, 8, 14, 15, 50])
def test_pieces_have_full_length_and_cover_the_series(length):
    pieces = split_long(torch.arange(length).unsqueeze(1), 7)
    assert {len(piece) for piece in pieces} == {min(length, 7)}
    assert len(pieces) == -(-length // 7)
    assert set(torch.cat(pieces).flatten().tolist()) == set(range(length))


def test_validation_takes_a_fraction_of_each_class():
    y = np.repeat([0, 1, 2], [50, 20, 1])
    chosen = validation_samples(y, 0.2, seed=0)
    assert_array_equal(np.bincount(y[chosen], minlength=3), [10, 4, 0])
    assert len(set(chosen.tolist())) == 14
    assert not np.array_equal(chosen, validation_samples(y, 0.2, seed=1))
    assert not len(validation_samples(y[50:], 0.2, seed=0))  # fewer than 10
