"""Calendar fields, their columns, and the seasons of a frequency."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from eattn.timeseries.calendar import calendar_columns, usual_seasons, varying_fields


@pytest.mark.parametrize(
    ("freq", "seasons"),
    [
        ("h", (24, 168)),
        ("2h", (12, 84)),
        ("5h", ()),
        ("15min", (96, 672)),
        ("min", (1440,)),
        ("10s", (6, 360)),
        ("D", (7,)),
        ("7D", ()),
        ("B", (5,)),
        ("W-SUN", (52,)),
        ("MS", (12,)),
        ("BME", (12,)),
        ("3MS", (4,)),
        ("QS-OCT", (4,)),
        ("YS-JAN", ()),
        (1, ()),
    ],
)
def test_seasons_follow_from_the_frequency(freq, seasons):
    assert usual_seasons(freq) == seasons


def test_columns_are_periodic():
    times = pd.date_range("2024-01-01", periods=24 * 21, freq="h")
    columns = calendar_columns(times, ("weekday", "hour"))
    assert columns.shape == (len(times), 2 * (3 + 4)) and columns.dtype == np.float32
    hours = calendar_columns(times, ("hour",))
    assert_allclose(hours[24:], hours[:-24], atol=1e-6)
    assert_allclose(columns[168:], columns[:-168], atol=1e-6)
    assert len(np.unique(columns[:168].round(4), axis=0)) == 168  # all hours of a week differ
    assert calendar_columns(times, ()).shape == (len(times), 0)


def test_columns_follow_the_local_clock():
    local = pd.date_range("2024-03-30", periods=4, freq="D", tz="Europe/Berlin")
    assert_allclose(calendar_columns(local, ("hour",)) - calendar_columns(local[:1], ("hour",)), 0)
    utc = calendar_columns(local.tz_convert("UTC"), ("hour",))
    assert np.abs(utc[3] - utc[0]).max() > 0.1  # the clock changes on March 31


@pytest.mark.parametrize(
    ("freq", "periods", "fields"),
    [
        ("15min", 8, ("minute",)),
        ("15min", 192, ("hour", "minute")),
        ("h", 47, ()),
        ("h", 48, ("hour",)),
        ("h", 24 * 70, ("day", "weekday", "hour")),
        ("h", 24 * 731, ("month", "day", "weekday", "hour")),
        ("D", 731, ("month", "day", "weekday")),
        ("W-SUN", 110, ("month", "day")),
        ("MS", 24, ("month",)),
        ("QS-OCT", 9, ("month",)),
        ("YS-JAN", 30, ()),
    ],
)
def test_calendar_fields_vary_and_complete_two_cycles(freq, periods, fields):
    times = pd.date_range("2023-01-01", periods=periods, freq=freq)
    assert varying_fields([times]) == fields
    assert varying_fields([pd.Index(np.arange(10_000))]) == ()
