"""Input of the forecaster: parsing, error messages and frequencies."""

import datetime

import numpy as np
import pandas as pd
import pytest

from eattn.data.freq import times_after
from eattn.timeseries.inputs import Columns, id_dtype, read_series, regularize

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
        DAYS.strftime("%d.%m.%Y"),
    ],
    ids=["seconds", "text", "dates", "periods", "dots"],
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
        (dict(ds=[0, 1, 2, 3, 3, 3]), "series 'a': 3 occurs twice"),
        (dict(ds=[0, 1, 1, 2, 2, 3]), r"'a': 1 occurs twice \(2 times occur more"),
        (
            dict(ds=[*DAYS[:5], pd.Timestamp("2024-01-06 07:00")]),
            r"2024-01-06 07:00:00 is not a whole number of steps \(D\) after 2024-01-01",
        ),
        (dict(ds=[*DAYS[:5], pd.NaT]), "series 'a', row 5: ds must not be missing"),
        (
            dict(ds=["2024-01-01", "soon", *"3456"]),
            "series 'a', row 1: ds must be a time such as .* got 'soon'",
        ),
        (
            dict(ds=[f"01/0{day}/2024" for day in range(1, 7)]),
            r"row 1: ds must be unambiguous, got '01/02/2024'.* use pd.to_datetime\(df\['ds'\]",
        ),
        (dict(ds=np.arange(6) / 2), "ds must be times or integers, got float64"),
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
    with pytest.raises(ValueError, match=r"a column 'ds' \(time_col\): did you mean 'dss'"):
        read(frame().rename(columns={"ds": "dss"}))
    with pytest.raises(ValueError, match=r"column 'y' \(target_col\): it has unique_id, ds, OT"):
        read(frame().rename(columns={"y": "OT"}))
    with pytest.raises(ValueError, match=r"a column 'shop' \(id_col\): it has unique_id, ds, y"):
        read_series(frame(), Columns(id="shop"))


def test_columns_that_are_not_used_are_named():
    with pytest.warns(UserWarning, match="columns of df that are not used: price, city$"):
        read(frame(price=1.0, city="Rome"))


def test_column_that_explains_duplicates_is_suggested():
    both = pd.concat([frame(shop="a"), frame(shop="b")]).drop(columns="unique_id")
    both["note"] = range(12)
    with (
        pytest.warns(UserWarning, match="not used: shop, note"),
        pytest.raises(ValueError, match=r"2024-01-01 .* occurs twice in ds; .* set id_col='shop'"),
    ):
        read(both)


WIDE = pd.DataFrame({"north": np.arange(6), "south": [np.nan, 1, 2, 3, np.nan, 5]}, index=DAYS)


@pytest.mark.parametrize(
    "data",
    [
        WIDE,
        WIDE.set_axis(DAYS.to_period("D")),
        WIDE.reset_index(names="ds"),
        WIDE.reset_index(names="ds").astype({"ds": str})[::-1],
        WIDE.rename_axis("ds").assign(ds=DAYS),
        WIDE.astype(object),
    ],
    ids=["index", "periods", "column", "text", "both", "objects"],
)
def test_wide_frame_has_one_series_per_column(data):
    north, south = read(data)
    assert (north.unique_id, south.unique_id) == ("north", "south")
    assert north.ds.equals(DAYS) and south.ds.equals(DAYS[1:])
    np.testing.assert_array_equal(north.y, np.arange(6))
    np.testing.assert_array_equal(south.y, [1, 2, 3, np.nan, 5])


def test_names_of_wide_columns_are_ids():
    numbers = WIDE.set_axis([7, 8], axis=1)
    assert [series.unique_id for series in read(numbers)] == [7, 8]
    assert id_dtype(numbers, Columns()) == np.int64
    assert id_dtype(numbers.reset_index(names="ds"), Columns()) == np.int64
    assert id_dtype(WIDE, Columns()) == np.dtype(object)
    steps = WIDE.set_axis(pd.RangeIndex(3, 9, name="step"))
    north, _ = read_series(steps, Columns(time="step"))
    assert north.ds.tolist() == [3, 4, 5, 6, 7, 8]


def test_frame_with_values_is_not_wide():
    """With a column y, other columns are not series, wherever the times are."""
    data = WIDE.rename(columns={"north": "y"})
    for each in (data, data.reset_index(names="ds")):
        with pytest.warns(UserWarning, match="not used: south"):
            [series] = read(each)
        assert series.unique_id == "y" and series.ds.equals(DAYS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (WIDE.assign(shop="a"), "must be one series, but 'shop' does not hold numbers; .* id_col"),
        (WIDE.rename(columns={"south": "Y"}), "if 'Y' holds the values, set target_col='Y'"),
        (WIDE.assign(ds=DAYS[::-1]), "times in its index and in column 'ds'; drop one of them"),
        (WIDE.set_axis(DAYS[[0, 1, 2, 2, 3, 4]]), "series 'north': 2024-01-03 .* occurs twice"),
        (
            pd.concat([WIDE.assign(shop=1), WIDE.assign(shop=2)]),
            "2024-01-01 .* occurs twice in ds; if column 'shop' .* set id_col='shop'",
        ),
        (WIDE.reset_index(drop=True), r"must have a column 'ds' \(time_col\)"),
        (WIDE.assign(unique_id="a"), r"must have a column 'y' \(target_col\)"),
        (WIDE[[]], "df has no columns with values"),
        (WIDE[:0], "df has no rows"),
        (WIDE.set_axis(["a", "a"], axis=1), "column 'a' occurs twice"),
        (pd.concat({"load": WIDE}, axis=1), "must have one level, got .'load', 'north'"),
        (WIDE.assign(south=np.inf), "series 'south', 2024-01-01 .* must be a finite number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ambiguous_wide_frame_raises(data, reason):
    with pytest.raises(ValueError, match=reason):
        read(data)


def test_covariates_need_the_long_format():
    with pytest.raises(ValueError, match=r"must have a column 'y' \(target_col\)"):
        read_series(WIDE, Columns(hist=["south"]))


def test_rows_are_sorted_by_time():
    [series] = read(frame().iloc[[3, 1, 0, 5, 4, 2]])
    assert series.ds.equals(DAYS)
    assert series.y.tolist() == [0, 1, 2, 3, 4, 5]


def test_series_without_values_are_skipped():
    data = pd.concat([frame(), frame(unique_id="empty", y=np.nan)])
    with pytest.warns(UserWarning, match="series without values are skipped: 'empty'"):
        [series] = read(data)
    assert series.unique_id == "a"


def test_pandas_series_keeps_its_name():
    names = [read(pd.Series([1.0, 2], name=name))[0].unique_id for name in ("load", None, 3)]
    assert names == ["load", "y", 3]


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


@pytest.mark.parametrize(
    ("times", "freq"),
    [
        (DAYS[[0, 2, 5]], "D"),
        (DAYS[[0, 2, 4]], "2D"),
        (pd.to_datetime(["2024-01-01", "2024-03-01", "2024-04-01", "2024-08-01"]), "MS"),
        (pd.to_datetime(["2024-01-31", "2024-04-30", "2024-10-31", "2025-01-31"]), "3ME"),
        (pd.to_datetime(["2024-01-07", "2024-01-14", "2024-01-28", "2024-02-11"]), "W-SUN"),
        (pd.to_datetime(["2024-01-01 00:00", "2024-01-01 00:45", "2024-01-01 01:15"]), "15min"),
        (pd.Index([0, 2, 4, 5, 6, 8]), 1),
        (pd.bdate_range("2024-01-01", periods=20)[[0, 1, 4, *range(6, 20)]], "B"),
    ],
)
def test_frequency_is_the_greatest_common_step(times, freq):
    [series] = read(pd.DataFrame({"ds": times, "y": 1.0}))
    assert series.freq == freq
    assert times.isin(series.ds).all()


def test_all_series_have_one_frequency():
    sparse = frame(unique_id="b", ds=DAYS + (DAYS - DAYS[0]))
    assert [series.freq for series in read(pd.concat([frame(), sparse]))] == ["D", "D"]
    weeks = [pd.date_range(start, periods=5, freq="7D") for start in DAYS[:2]]
    data = pd.DataFrame(
        {"unique_id": list("aaaaabbbbb"), "ds": weeks[0].append(weeks[1]), "y": 1.0}
    )
    assert [series.freq for series in read(data)] == ["7D", "7D"]


def test_mostly_missing_steps_warn():
    times = DAYS[[0, 3]].append(DAYS[:4] + pd.Timedelta("20D"))
    with pytest.warns(
        UserWarning, match="'a': 75% of the steps are missing at the inferred .* 'D'"
    ):
        [series] = read(frame(ds=times))
    assert len(series) == 24


@pytest.mark.parametrize("freq", ["h", "12h", "2D", "MS"])
def test_wrong_frequency_raises(freq):
    data = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=40), "y": 1.0})
    with pytest.raises(ValueError, match=f"series 'y': the times have .* 'D', not '{freq}'"):
        read(data, freq)


def test_business_days_may_be_read_as_days():
    data = pd.DataFrame({"ds": pd.bdate_range("2024-01-01", periods=40), "y": 1.0})
    assert len(read(data, "D")[0]) == 54


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("freq", ["h", "15min", "D", "W-SUN", "MS", "B"])
def test_steps_follow_the_local_clock_across_a_year(zone, freq):
    grid = pd.date_range("2024-01-01", "2025-01-10", freq=freq, tz=zone)
    kept = np.delete(np.arange(len(grid)), [3, 5])
    [series] = read(pd.DataFrame({"ds": grid[kept], "y": kept * 1.0}))
    assert series.freq == freq
    assert series.ds.equals(pd.DatetimeIndex(grid, freq=None))
    assert times_after(freq, grid[0], len(grid) - 1).equals(pd.DatetimeIndex(grid[1:], freq=None))


def test_midnight_that_the_clock_skips_is_moved():
    last = pd.Timestamp("2024-09-07", tz="America/Santiago")  # 2024-09-08 starts at 01:00
    assert [time.hour for time in times_after("D", last, 2)] == [1, 0]


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
    times = [*pd.date_range("2024-01-01", periods=5, freq="min"), pd.Timestamp("2204-01-01")]
    with pytest.raises(ValueError, match=r"2204-01-01 00:00:00 is .* steps of min after"):
        read(frame(ds=times))
    hours = pd.date_range("2024-01-01", periods=6, freq="h")
    times = hours + pd.to_timedelta([0, 1, 5, 2, 7, 3], "s")
    with pytest.raises(ValueError, match=r"uneven: their greatest common step is s, .* round"):
        read(frame(ds=times))


def test_single_wrong_time_is_named():
    times = [*pd.date_range("2024-01-01", periods=5, freq="min"), pd.Timestamp("2024-01-03")]
    with pytest.raises(
        ValueError, match=r"2024-01-03 .* is 2,876 steps \(min\) after .* 1,000 steps"
    ):
        read(frame(ds=times))
