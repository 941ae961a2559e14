"""Input of the forecaster: parsing, error messages, frequencies and calendar fields."""

import datetime

import numpy as np
import pandas as pd
import pytest

from eattn.timeseries.freq import varying_fields
from eattn.timeseries.inputs import read_series, regularize

DAYS = pd.date_range("2024-01-01", periods=6, freq="D")


def frame(**columns) -> pd.DataFrame:
    """Return six days of one series; `columns` replace or add columns."""
    return pd.DataFrame({"unique_id": "a", "ds": DAYS, "y": np.arange(6.0)} | columns)


def read(data, freq=None):
    return regularize(read_series(data), freq)


def test_series_keep_the_order_of_their_first_rows():
    data = pd.DataFrame({"unique_id": list("baab"), "ds": [1, 1, 2, 2], "y": [1, 2, 3, 4]})
    b, a = read(data)
    assert (b.unique_id, a.unique_id) == ("b", "a")
    assert b.y.tolist() == [1, 4] and a.y.tolist() == [2, 3]
    [series] = read(frame().set_index("unique_id"))  # as in older Nixtla frames
    assert series.unique_id == "a"


@pytest.mark.parametrize(
    "times",
    [
        DAYS.astype("datetime64[s]"),
        DAYS.strftime("%Y-%m-%d"),
        [datetime.date(2024, 1, day) for day in range(1, 7)],
        pd.period_range("2024-01-01", periods=6, freq="D"),
    ],
    ids=["seconds", "text", "dates", "periods"],
)
def test_times_may_have_many_types(times):
    [series] = read(frame(ds=times))
    assert series.ds.equals(DAYS)
    assert series.freq == "D"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (dict(y=[1, 2, "x", 4, 5, 6]), r"series 'a', 2024-01-03 00:00:00: y must be .* got 'x'"),
        (dict(y=[1, 2, np.inf, 4, 5, 6]), "y must be a finite number, got 'inf'"),
        (dict(y=[np.nan] * 6), "series 'a': every value is missing"),
        (dict(ds=DAYS[[0, 1, 2, 2, 3, 4]]), "series 'a': 2024-01-03 00:00:00 occurs twice"),
        (dict(ds=DAYS[[0, 1, 3, 2, 4, 5]]), "2024-01-03 00:00:00 comes after 2024-01-04 00:00:00"),
        (dict(ds=[0, 1, 2, 3, 3, 4]), "series 'a': 3 occurs twice"),
        (dict(ds=[0, 2, 4, 5, 6, 8]), "5 is not a whole number of steps .2. after 0"),
        (
            dict(ds=[*DAYS[:5], pd.Timestamp("2024-01-06 07:00")]),
            r"2024-01-06 07:00:00 is not a whole number of steps \(D\) after 2024-01-01",
        ),
        (dict(ds=[*DAYS[:5], pd.NaT]), "series 'a': ds is missing in row 5"),
        (dict(ds=["2024-01-01", "soon", *"3456"]), "ds must be times such as .* got 'soon'"),
        (dict(ds=np.arange(6) / 2), "ds must be times or integers, got float64"),
        (dict(ds=DAYS.tz_localize("CET")), "ds must not have a time zone, got CET; remove it with"),
        (dict(unique_id=["a", None, *"aaaa"]), "unique_id is missing in row 1"),
    ],
    ids=str,
)
def test_errors_name_series_and_time(columns, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        read(frame(**columns))


def test_one_row_needs_a_frequency():
    with pytest.raises(ValueError, match="series 'a' has only one row"):
        read(frame()[:1])
    assert len(read(frame()[:1], freq="D")) == 1


def test_missing_column_error_suggests_the_nearest_name():
    with pytest.raises(ValueError, match="must have a column 'ds': did you mean 'dss'"):
        read(frame().rename(columns={"ds": "dss"}))
    with pytest.raises(ValueError, match="must have a column 'y': it has unique_id, ds, OT"):
        read(frame().rename(columns={"y": "OT"}))


@pytest.mark.parametrize("data", [frame()[:0], [], np.empty(0), pd.Series([], dtype=float)])
def test_empty_input_raises(data):
    with pytest.raises(ValueError, match=r"no rows|no values"):
        read(data)


def test_arrays_must_be_one_series():
    with pytest.raises(ValueError, match=r"one series \[n\], got shape \(2, 3\)"):
        read(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="got dict"):
        read({"y": [1, 2]})


@pytest.mark.parametrize("freq", ["h", "15min", "D", "B", "W-SUN", "MS", "ME", "QS-OCT", "YS-JAN"])
def test_frequency_is_inferred_despite_missing_rows(freq):
    grid = pd.date_range("2024-01-01", periods=40, freq=freq)
    kept = np.delete(np.arange(40), [12, 13, 25])
    data = pd.DataFrame({"ds": grid[kept], "y": kept * 1.0})
    [series] = read(data)
    assert series.ds.equals(pd.DatetimeIndex(grid, freq=None))
    assert np.isnan(series.y[[12, 13, 25]]).all()
    assert series.y[kept].tolist() == kept.tolist()


def test_integer_times_have_a_frequency():
    [series] = read(pd.DataFrame({"ds": [10, 20, 40, 50], "y": [1.0, 2, 4, 5]}))
    assert series.freq == 10
    np.testing.assert_array_equal(series.y, [1, 2, np.nan, 4, 5])


def test_short_series_has_the_frequency_of_the_others():
    months = pd.date_range("2024-01-01", periods=8, freq="MS")
    data = pd.DataFrame(
        {"unique_id": ["a"] * 8 + ["b"], "ds": [*months, months[3]], "y": np.ones(9)}
    )
    assert [series.freq for series in read(data)] == ["MS"] * 2


def test_given_frequency_must_fit():
    [series] = read(frame(ds=DAYS[[0, 2, 4, 5, 5, 5]])[:3], freq="D")
    np.testing.assert_array_equal(series.y, [0, np.nan, 1, np.nan, 2])
    with pytest.raises(ValueError, match="2024-01-02 00:00:00 is not a whole number of steps"):
        read(frame(), freq="2D")


def test_wrong_year_raises_before_memory_is_exhausted():
    with pytest.raises(ValueError, match=r"2204-01-01 00:00:00 is .* steps of min after"):
        times = [*pd.date_range("2024-01-01", periods=5, freq="min"), pd.Timestamp("2204-01-01")]
        read(frame(ds=times))


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
