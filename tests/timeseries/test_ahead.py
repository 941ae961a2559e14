import numpy as np
import pandas as pd
import pytest

from eattn.data.freq import is_next, times_after
from eattn.timeseries.ahead import BLOCK, Ahead
from eattn.timeseries.calendar import calendar_columns

FIELDS = ("hour", "weekday", "month")
STARTS = {
    "h": pd.Timestamp("2024-03-30 22:00"),
    "MS": pd.Timestamp("2024-03-01"),
    "D": pd.Timestamp("2024-03-30", tz="Europe/Berlin"),
    "15min": pd.Timestamp("2024-03-31 00:45", tz="Europe/Berlin"),
    2: 7,
}


@pytest.mark.parametrize("freq", STARTS)
@pytest.mark.parametrize("count", [1, 12, BLOCK + 1])
def test_consecutive_requests_return_next_times_and_columns(freq, count):
    fields = () if isinstance(freq, int) else FIELDS
    ahead, time = Ahead(fields), STARTS[freq]
    for _ in range(BLOCK + 2 if count == 12 else 3):
        times = ahead.times(freq, time, count)
        assert times.tolist() == times_after(freq, time, count).tolist()
        labels = ahead.labels(freq, time, count)
        assert labels == [each if isinstance(freq, int) else str(each) for each in times]
        np.testing.assert_array_equal(ahead.columns(times), calendar_columns(times, fields))
        time = times[0]


def test_jumps_backward_and_forward_return_their_own_times():
    ahead = Ahead(FIELDS)
    for days in (0, 400, 3, -50, 3):
        time = STARTS["h"] + pd.Timedelta(days=days)
        assert ahead.times("h", time, 4).tolist() == times_after("h", time, 4).tolist()


def test_equal_times_in_different_zones_have_different_columns():
    ahead, time = Ahead(("hour",)), pd.Timestamp("2024-05-01 12:00", tz="UTC")
    for zone in ("UTC", "Asia/Tokyo", "UTC"):
        times = ahead.times("h", time.tz_convert(zone), 3)
        assert str(times.tz) == zone
        np.testing.assert_array_equal(ahead.columns(times), calendar_columns(times, ("hour",)))


@pytest.mark.parametrize("freq", STARTS)
def test_is_next_accepts_only_the_next_time(freq):
    first, second = times_after(freq, STARTS[freq], 2)
    assert is_next(freq, STARTS[freq], first)
    assert not is_next(freq, STARTS[freq], second)
    assert not is_next(freq, first, STARTS[freq])
