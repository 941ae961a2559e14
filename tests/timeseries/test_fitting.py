"""Values that a fit derives from the data: season lengths, and the known future of series."""

import numpy as np
import pytest
from forecaster_helpers import long, read, wave
from numpy.testing import assert_allclose

from eattn.timeseries.covariates import Covariates
from eattn.timeseries.fitting import choose_seasons, make_table
from eattn.timeseries.inputs import Columns


@pytest.mark.parametrize(
    ("given", "seasons"),
    [
        (None, ()),
        (4, (4,)),
        (1, ()),
        ((12, 4), (4, 12)),
        (np.array([12, 4, 4]), (4, 12)),
        ([30, 31], (30,)),  # of 60 values
    ],
    ids=str,
)
def test_season_lengths_may_be_given(given, seasons):
    assert choose_seasons(given, read(wave(60))) == seasons


def test_seasons_complete_twice_in_the_longest_series():
    assert choose_seasons(None, read(long({"a": 47}))) == ()
    assert choose_seasons(None, read(long({"a": 5, "b": 48}))) == (24,)
    assert choose_seasons(None, read(long({"a": 336}))) == (24, 168)
    assert choose_seasons(None, read(long({"a": 40}, "MS"))) == (12,)


def test_known_future_holds_calendar_covariates_and_constants():
    frame = long({"a": 60, "b": 50}).assign(temp=np.arange(110.0), size=lambda x: len(x))
    columns = Columns(futr=["temp"], stat=["size"])
    series = read(frame, columns)
    covariates = Covariates.fit(series, columns)
    table = make_table(series, ("hour",), covariates, seasons=(), horizon=3)
    hours, futr, stat = 8, 1, 1
    assert table.known.shape == (110 + 2 * 3, hours + futr + stat)
    assert table.tokens.shape == (110, 6 + hours + futr + stat)
    [first, second] = covariates.encode_history(series[0]), covariates.encode_history(series[1])
    assert_allclose(table.known[:60, hours], first.futr[:, 0])
    assert_allclose(table.known[63:113, hours], second.futr[:, 0])
    assert_allclose(table.known[60:63, hours], first.futr[-1, 0])  # not known, and not used
    assert_allclose(table.known[24:48, :hours], table.known[:24, :hours], atol=1e-6)
