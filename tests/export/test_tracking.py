"""Tensors that follow series step by step equal the rows and features of the library."""

import math

import numpy as np
import pytest
import torch

from eattn.export import tracking as tensors
from eattn.timeseries import features, tracking

LENGTH, HORIZON = 300, 9


def awkward(level, scale, period):
    """Return a series with missing values, an outlier, a level shift and a constant part."""
    rng = np.random.default_rng(period)
    y = np.sin(2 * np.pi * np.arange(LENGTH) / period) + 0.3 * rng.normal(size=LENGTH)
    y[5], y[90] = 1e3, 1e12  # before and after the first values, which are never errors
    y[140:] += 1e5  # the first of these values is held back
    y[[1, 2, 60, 61, 62, 91, 139, 140]] = math.nan
    y[220:260] = y[219]
    return level + scale * y


@pytest.mark.parametrize("seasons", [(), (7,), (4, 12)], ids=str)
def test_every_step_matches_the_library(seasons):
    series = [awkward(0.0, 1.0, 7), awkward(1e6, 0.01, 4), awkward(-3e-9, 1e-10, 12)]
    known = [tracking.follow(y.tolist(), seasons) for y in series]
    assert [track.spikes for _, track in known] == [2, 2, 2]
    steps, track = np.arange(1, HORIZON + 1), tensors.empty(seasons)
    track = tensors.Track(*(x.repeat(3, *[1] * (x.dim() - 1)) for x in track))
    for t in range(LENGTH):
        track = tensors.follow(torch.tensor([y[t] for y in series]), track, seasons)
        x, ahead = tensors.read_tokens(track, seasons), tensors.look_ahead(track, HORIZON, seasons)
        assert (x.dtype, ahead.dtype) == (torch.float32, torch.float32)
        for number, (rows, _) in enumerate(known):
            at, first = np.array(t), np.array(0)
            np.testing.assert_allclose(track.rows[number, -1], rows[t], rtol=1e-9)
            want = features.read_tokens(rows, at, first, seasons)
            np.testing.assert_allclose(x[number], want, rtol=1e-4, atol=1e-4)
            want = features.look_ahead(rows, at, first, steps, seasons)
            np.testing.assert_allclose(ahead[number], want, rtol=1e-4, atol=1e-4)
    for number, (rows, after) in enumerate(known):
        np.testing.assert_allclose(track.rows[number], rows[-track.rows.shape[1] :], rtol=1e-9)
        for name in ("steps", "known", "first", "spikes", "held"):
            assert getattr(track, name)[number].item() == getattr(after, name)
