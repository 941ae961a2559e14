"""Series as tensors: scaled, filled, padded, cut into pieces, and held out."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from eattn.timeseries.arrays import Scaling, held_out, pieces, side_by_side, trim

NAN = np.nan


def test_channels_are_standardised_over_what_was_observed():
    rng = np.random.default_rng(0)
    X = list(rng.normal(size=(50, 3, 20)) * [[1], [1e-6], [1e9]] + [[0], [7], [-1e9]])
    X[0][1, 4] = np.nan
    scaling = Scaling.of(X)
    values = torch.cat(scaling(X)).double().numpy()
    assert values.shape[1] == scaling.channels == 6
    assert_allclose(values[:, :3].mean(0), 0, atol=1e-4)
    assert_allclose(values[:, :3].std(0), 1, atol=1e-3)
    assert_array_equal((values[:, 3:] == 0).sum(0), [0, 1, 0])


def test_what_is_held_out_has_a_part_of_each_class():
    y = np.repeat([0, 1, 2], [50, 20, 1])
    chosen = held_out(y, 0.2, seed=0)
    assert_array_equal(np.bincount(y[chosen], minlength=3), [10, 4, 0])
    assert len(set(chosen.tolist())) == 14
    assert not np.array_equal(chosen, held_out(y, 0.2, seed=1))
    assert not len(held_out(y[50:], 0.2, seed=0))


def test_a_missing_value_is_the_mean_and_flagged_if_it_may_be_missing():
    X = [np.array([[1.0, NAN, 3.0], [2.0, 2.0, 2.0]])]
    assert_array_equal(Scaling.of(X)(X)[0], [[-1, 0, 1, 1], [0, 0, 0, 1], [1, 0, 1, 1]])
    whole = Scaling.of([X[0][:, ::2]])
    assert_array_equal(whole(X)[0], [[-1, 0], [0, 0], [1, 0]])


def test_a_gap_keeps_its_place_and_the_ends_do_not():
    case = np.array([[NAN, 1, NAN, NAN, 4, NAN], [NAN, NAN, NAN, 3, NAN, NAN]])
    assert_array_equal(trim(case), case[:, 1:5])
    assert trim(case[:, :1]).shape == (2, 0)


def test_far_outliers_are_cut_off():
    scaling = Scaling.of([np.array([[-1.0, 1.0]])])
    assert_array_equal(scaling([np.array([[1e308, -1e308, 50.0]])])[0], [[100], [-100], [50]])


def test_rounding_is_not_taken_for_signal():
    scaling = Scaling.of([np.full((1, 1000), 0.1)])
    assert scaling.std[0] == pytest.approx(0.1)  # the size of its values
    assert_allclose(scaling([np.array([[0.1]])])[0], 0, atol=1e-12)


def test_integers_are_numbers():
    scaling = Scaling.of([np.array([[1, 3]])])
    assert_array_equal(scaling([np.array([[1, 3]], np.int8)])[0], [[-1], [1]])


def test_a_batch_is_padded_and_masked_where_lengths_differ():
    long, short, none = torch.ones(3, 2), torch.ones(1, 2), torch.ones(0, 2)
    x, mask = side_by_side([long, short, none])
    assert x.shape == (3, 3, 2)
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert x.sum() == 8
    assert side_by_side([long, long])[1] is None
    x, mask = side_by_side([none, none])
    assert x.shape == (2, 1, 2)
    assert not mask.any()


@pytest.mark.parametrize("length", [1, 6, 7, 8, 13, 14, 15, 50])
def test_pieces_are_of_full_length_and_cover_the_series(length):
    series = torch.arange(length).unsqueeze(1)
    cut = pieces(series, 7)
    assert {len(piece) for piece in cut} == {min(length, 7)}
    assert len(cut) == -(-length // 7)
    assert set(torch.cat(cut).flatten().tolist()) == set(range(length))
