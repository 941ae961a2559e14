"""Covariates: reading, scaling, categories, future rows, holidays and streams."""

import copy
import json
import pickle
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eattn.data.freq import times_after
from eattn.timeseries.covariates import LIMIT, MAX_CATEGORIES, Covariates
from eattn.timeseries.holiday_calendar import HolidayCalendar
from eattn.timeseries.inputs import Columns, TimeSeries, fill_series, read_series, regularize

DAYS = pd.date_range("2024-01-01", periods=6, freq="D")
COLUMNS = Columns(futr=["temp", "kind"], hist=["load"], stat=["region"])
NEXT = times_after("D", DAYS[-1], 3)


def frame(name="a", **columns) -> pd.DataFrame:
    """Return six days of one series; `columns` replace or add columns."""
    own = {
        "unique_id": name,
        "ds": DAYS,
        "y": np.arange(6.0),
        "temp": [10.0, 20, 30, 40, 50, 60],
        "kind": list("xyzxyz"),
        "load": np.arange(6) % 2 == 0,
        "region": "north",
    }
    return pd.DataFrame(own | columns)


def future(name="a", **columns) -> pd.DataFrame:
    own = {"unique_id": name, "ds": NEXT, "temp": [35.0, 45, 35], "kind": list("zyx")}
    return pd.DataFrame(own | columns)


def read(data, columns=COLUMNS):
    return regularize(read_series(data, columns))


def fit(data, columns=COLUMNS, holidays=None) -> Covariates:
    return Covariates.fit(read(data, columns), columns, holidays)


def one(name: str, values) -> Covariates:
    """Return the encoder of one past-only column with these training values."""
    days = pd.date_range("2024-01-01", periods=len(values))
    data = pd.DataFrame({"ds": days, "y": 1.0, name: values})
    return fit(data, Columns(hist=[name]))


def encoded(covariates: Covariates, name: str, *values) -> np.ndarray:
    """Return the encoded values of one past-only column, each on its own."""
    return np.concatenate([covariates.encode_rows(row(**{name: x}))[1] for x in values])


def row(**cells) -> TimeSeries:
    """Return one row with these cells, as a stream has it."""
    exog = {name: np.array([cell], dtype=object) for name, cell in cells.items()}
    return TimeSeries("a", DAYS[:1], np.array([1.0]), exog=exog)


# ---- reading ----


def test_covariates_stay_with_their_rows():
    data = frame(temp=[0.0, 1, 2, np.nan, 4, 5], y=[np.nan, 1, 2, 3, 4, 5])
    data = pd.concat([data, frame("b", kind="q")]).iloc[[3, 7, 1, 0, 11, 5, 2, 8, 6]]
    a, b = read(data)
    assert a.ds.equals(DAYS[1:]) and b.ds.equals(DAYS)  # the first value of a is missing
    assert_array_equal(a.y, [1, 2, 3, np.nan, 5])
    assert_array_equal(a.exog["temp"], [1, 2, np.nan, np.nan, 5])
    assert a.exog["kind"].tolist() == ["y", "z", "x", None, "z"]
    assert_array_equal(a.exog["load"], [0, 1, 0, np.nan, 0])
    assert b.exog["kind"].tolist() == ["q", "q", "q", None, None, "q"]
    assert a.static == b.static == {"region": "north"}


def test_gap_before_new_rows_is_filled():
    [series] = read_series(frame().iloc[[3, 5]], COLUMNS)
    full = fill_series("D", series, after=DAYS[1], count=2)
    assert full.ds.equals(DAYS[2:])
    assert_array_equal(full.y, [np.nan, 3, np.nan, 5])
    assert full.exog["kind"].tolist() == [None, "x", None, "z"]


def test_only_listed_columns_are_read():
    with pytest.warns(UserWarning, match="columns of df that are not used: price$"):
        [series] = read_series(frame(price=1.0), COLUMNS)
    assert [*series.exog, *series.static] == ["temp", "kind", "load", "region"]


def test_covariates_do_not_share_memory_with_the_frame():
    data = frame()
    [series] = read(data)
    data.loc[:, ["y", "temp"]] = -1.0
    assert series.y[5] == 5 and series.exog["temp"][5] == 60


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, None, False], [1, np.nan, 0]),
        (pd.array([1, None, 2], "Int64"), [1, np.nan, 2]),
        (pd.array([True, None, False], "boolean"), [1, np.nan, 0]),
        (pd.Categorical([1, None, 2]), ["1", None, "2"]),
        (pd.Categorical([True, None, 2.5]), ["1", None, "2.5"]),
        (["a", None, ""], ["a", None, None]),
        (pd.array(["a", None, "1"], "string"), ["a", None, "1"]),
    ],
    ids=str,
)
def test_columns_hold_numbers_or_categories(values, expected):
    data = frame()[:3].assign(temp=values)
    [series] = read_series(data, COLUMNS)
    assert_array_equal(series.exog["temp"], np.array(expected, series.exog["temp"].dtype))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (dict(temp=[1, 2, np.inf, 4, 5, 6]), "'a', 2024-01-03 .*: temp must be a finite number"),
        (dict(temp=[1, 2, "x", 4, 5, 6]), "'temp' must hold numbers or categories, got both, with"),
        (dict(temp=DAYS), "'temp' must hold numbers or categories, got datetime64"),
        (
            dict(region=["n", "n", None, "s", "n", "n"]),
            r"'a', 2024-01-04 .*: region must be constant in each series .* got n and s",
        ),
        (dict(region=[1, 1, 1, 1, 1, 2]), r"got 1.0 and 2.0; if it changes, use futr_exog_list"),
    ],
    ids=str,
)
def test_errors_name_column_series_and_time(columns, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        read_series(pd.concat([frame(**columns), frame("b", **columns)]), COLUMNS)


def test_missing_column_error_suggests_the_nearest_name():
    columns = Columns(futr=["temperature"])
    with pytest.raises(ValueError, match=r"'temperature' \(futr_exog_list\): did you mean 'temp'"):
        read_series(frame(), columns)
    with pytest.raises(TypeError, match=r"hist_exog_list needs .* load, got list"):
        read_series([1.0, 2.0], Columns(hist=["load"]))


@pytest.mark.parametrize(
    ("lists", "reason"),
    [
        (dict(futr=["a"], stat=["b", "a"]), "'a' is in futr_exog_list and again in stat_exog_list"),
        (dict(futr=["a", "a"]), "'a' is in futr_exog_list and again in futr_exog_list"),
        (dict(hist=["y"]), "'y' is in target_col and again in hist_exog_list"),
        (dict(hist="temp"), r"list of column names, got 'temp'; use \['temp'\]"),
        (dict(hist=[1]), r"list of column names, got \[1\]"),
    ],
    ids=str,
)
def test_a_column_is_in_one_list(lists, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        Columns(**lists)
    assert Columns(futr=None, hist=np.array(["b"])).hist == ("b",)


def test_new_rows_of_known_series_need_no_static_columns():
    for data in (frame(), frame().drop(columns="region")):
        [series] = read_series(data, COLUMNS, static=False)
        assert series.static == {}
        assert fit(frame()).encode_rows(series)[0].shape == (6, 4)


def test_static_value_may_be_missing_in_some_rows():
    a, b = read(pd.concat([frame(region=[None, "s", *[None] * 4]), frame("b", region=None)]))
    assert (a.static, b.static) == ({"region": "s"}, {"region": None})


# ---- encoding ----


def test_parts_have_their_widths():
    covariates = fit(pd.concat([frame(), frame("b", region="south")]), holidays="DE")
    assert covariates.futr_width == 1 + 3 + 3
    a, b = map(covariates.encode_history, read(pd.concat([frame(), frame("b", region="south")])))
    assert [x.shape for x in a] == [(6, 7), (6, 1), (2,)]
    assert {x.dtype for x in a} == {np.dtype(np.float32)}
    assert_array_equal(a.futr[:, 1:4], np.eye(3)[[0, 1, 2, 0, 1, 2]])
    assert_array_equal(a.futr[:2, 4:], [[1, 0, 0], [0, 0, 1]])  # 1 January is a holiday
    assert_array_equal(a.hist[:, 0], [1, 0, 1, 0, 1, 0])
    assert_array_equal(np.stack([a.stat, b.stat]), np.eye(2))
    empty = Covariates().encode_history(read(frame())[0])
    assert [x.shape for x in empty] == [(6, 0), (6, 0), (0,)]


def test_numbers_have_the_scale_of_most_values():
    rng = np.random.default_rng(0)
    values = rng.normal(15, 4, 1000)
    usual = encoded(one("temp", values), "temp", *values)
    assert abs(np.median(usual)) < 1e-6 and 0.9 < usual.std() < 1.1
    values[500] = 1e12
    outlier = encoded(one("temp", values), "temp", *values)
    assert outlier[500] == LIMIT
    assert_allclose(np.delete(outlier, 500), np.delete(usual[:, 0], 500), atol=0.02)


@pytest.mark.parametrize(
    ("values", "new", "expected"),
    [
        ([0, 0, 1, 0], [0, 1, 2], [0, 1, 2]),
        ([1, 1, 1, 1], [0, 1], [0, 1]),
        ([0] * 17 + [2, 4, 6], [0, 4, 400], [0, 1, LIMIT]),  # rain
        ([7, 7, 7], [7, 14], [0, 1]),
        ([0.1, 0.1 + 1e-16, 0.1], [0.1, 0.2], [0, 1]),
        ([-1e100, 0, 1e100, 1e-300], [0.5, 1e100], [0, 2.7]),
        ([0] * 9 + [1e-300], [1e-300, 1e100], [1, LIMIT]),
    ],
    ids=str,
)
def test_columns_with_few_values_are_scaled(values, new, expected):
    covariates = one("x", np.array(values, dtype=float))
    assert_allclose(encoded(covariates, "x", *new)[:, 0], expected, atol=0.01)
    [series] = read(pd.DataFrame({"ds": DAYS[: len(new)], "y": 1.0, "x": new}), Columns(hist=["x"]))
    assert_array_equal(covariates.encode_rows(series)[1], encoded(covariates, "x", *new))


def test_unknown_categories_are_other_or_zero():
    few = one("kind", list("xyzzy"))
    assert_array_equal(encoded(few, "kind", "z", "x", "?"), [[0, 0, 1], [1, 0, 0], [0, 0, 0]])
    names = [f"c{i % 50}" for i in range(120)]  # c0 … c19 are more frequent
    many = one("kind", names)
    rows = encoded(many, "kind", *names, "?")
    assert rows.shape == (121, MAX_CATEGORIES + 1)
    assert_array_equal(rows.sum(1), 1)
    assert rows[-1, -1] == 1 and rows[:20, -1].sum() == 0
    assert len(np.unique(rows, axis=0)) == MAX_CATEGORIES + 1


def test_categories_may_change_their_type():
    covariates = one("shop", pd.Categorical([1, 2, 3, 1]))
    columns = Columns(hist=["shop"])
    for values in ([3, 1], [3.0, 1.0], ["3", "1"], pd.Categorical([3, 1])):
        data = pd.DataFrame({"ds": DAYS[:2], "y": 1.0, "shop": values})
        [series] = read_series(data, columns)
        assert_array_equal(covariates.encode_rows(series)[1], [[0, 0, 1], [1, 0, 0]])


def test_missing_values_repeat_the_last_known_value():
    covariates = fit(frame())
    data = frame(temp=[np.nan, 10, np.nan, 60, np.nan, np.nan], kind=[None, "y", *[None] * 4])
    [series] = read(data)
    futr, _ = covariates.encode_rows(series)
    low, high = covariates.encode_rows(read(frame())[0])[0][[0, 5], 0]
    assert_array_equal(futr[:, 0], [0, low, low, high, high, high])
    assert_array_equal(futr[:, 1:], [[0, 0, 0]] + [[0, 1, 0]] * 5)
    before = (np.array([7, 0, 0, 1], np.float32), np.array([1], np.float32))
    futr, _ = covariates.encode_rows(series, before)
    assert_array_equal(futr[0], before[0])
    assert_array_equal(futr[1, 1:], [0, 1, 0])


def test_column_without_values_raises():
    with pytest.raises(ValueError, match="column 'temp' has no values: all are missing"):
        fit(frame(temp=np.nan))
    with pytest.raises(ValueError, match="column 'region' has no values"):
        fit(frame(region=None))


def test_text_in_a_numeric_column_raises():
    covariates = fit(frame())
    [series] = read_series(frame(temp=list("12x456")), COLUMNS)
    with pytest.raises(ValueError, match=r"'a', 2024-01-03 .*: temp must be a finite .* got 'x'"):
        covariates.encode_rows(series)
    [series] = read_series(frame(temp=["10", "20", "", "40", "50", "60"]), COLUMNS)
    assert covariates.encode_rows(series)[0][1, 0] == covariates.encode_rows(series)[0][2, 0]


def test_state_is_saved_as_json():
    series = read(pd.concat([frame(), frame("b", region="south")]))
    covariates = Covariates.fit(series, COLUMNS, "DE-BY")
    saved = json.loads(json.dumps(covariates.to_dict(), allow_nan=False))
    others = Covariates.from_dict(saved), pickle.loads(pickle.dumps(covariates))
    for other in (*others, copy.deepcopy(covariates)):
        assert other.to_dict() == covariates.to_dict()
        for mine, theirs in zip(
            covariates.encode_history(series[1]), other.encode_history(series[1]), strict=True
        ):
            assert_array_equal(mine, theirs)


# ---- future ----


def test_future_rows_are_found_in_any_order():
    covariates = fit(frame())
    both = pd.concat([future("b", temp=[1.0, 2, 3]), future(), future("c")])
    late = future(ds=NEXT + pd.Timedelta("9D"), temp=np.nan)  # not needed
    both = pd.concat([both, late]).sample(frac=1, random_state=0).assign(price=1.0)
    found = covariates.encode_future(both, {"a": NEXT, "b": NEXT[:2]})
    assert list(found) == ["a", "b"]
    assert found["a"].shape == (3, 4) and found["b"].shape == (2, 4)
    assert found["a"].dtype == np.float32
    [series] = read(frame(temp=[35.0, 45, 35, 1, 2, 3], kind=list("zyxzyx")))
    expected = covariates.encode_rows(series)[0]
    assert_array_equal(found["a"], expected[:3])
    assert_array_equal(found["b"], expected[3:5])


@pytest.mark.parametrize(
    "data",
    [
        future().drop(columns="unique_id"),
        future().set_index("unique_id"),
        future().drop(columns="unique_id").set_index("ds"),
        future(ds=NEXT.strftime("%d.%m.%Y")),
        future(ds=NEXT.to_period("D")),
        future().astype({"unique_id": "category", "kind": "category"}),
    ],
    ids=["no id", "id in index", "times in index", "text", "periods", "categories"],
)
def test_future_rows_may_have_many_forms(data):
    covariates = fit(frame())
    expected = covariates.encode_future(future(), {"a": NEXT})["a"]
    assert_array_equal(covariates.encode_future(data, {"a": NEXT})["a"], expected)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "futr_df must be a data frame with the columns unique_id, ds, temp, kind$"),
        ([1], "futr_df must be a data frame .* got list"),
        (future().drop(columns="temp"), r"futr_df must have a column 'temp' \(futr_exog_list\)"),
        (future().rename(columns={"ds": "dss"}), r"column 'ds' \(time_col\): did you mean 'dss'"),
        (future().drop(columns="unique_id"), r"must have a column 'unique_id' \(id_col\)"),
        (future()[:0], "futr_df has no rows"),
        (future("c"), "futr_df has no rows of series 'a'; it has series 'c'"),
        (future(), "futr_df has no rows of series 'b'; it has series 'a'"),
        (
            future()[:2],
            "no row of series 'a' at 2024-01-09 .* 3 times from 2024-01-07 .* 2024-01-09",
        ),
        (future().iloc[[0, 1, 1, 2]], "two rows of series 'a' at 2024-01-08"),
        (future(ds=[6, 7, 8]), "futr_df: ds must be a time, got 6"),
        (future(ds=NEXT.tz_localize("UTC")), "history has no time zone, but .* zone UTC"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_missing_future_rows_raise(data, reason):
    with pytest.raises(ValueError, match=reason):
        fit(frame()).encode_future(data, {"a": NEXT, "b": NEXT})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            future(temp=[1, np.nan, 3]),
            r"futr_df, row 1 \(series 'a', 2024-01-08 00:00:00\): temp must not be missing",
        ),
        (future(kind=["x", "y", None]), r"row 2 \(series 'a', 2024-01-09 .*: kind must not be"),
        (future(temp=["1", "x", "3"]), r"row 1 \(series 'a', .*: temp must be a finite number"),
        (future(temp=[1, 2, np.inf]), r"row 2 \(series 'a', .*: temp must be a finite number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_future_errors_name_column_series_and_row(data, reason):
    with pytest.raises(ValueError, match=reason):
        fit(frame()).encode_future(data, {"a": NEXT})


def test_error_names_the_row_of_the_frame():
    both = pd.concat([future("b"), future(kind=["x", None, "y"])])
    with pytest.raises(ValueError, match=r"row 4 \(series 'a', 2024-01-08"):
        fit(frame()).encode_future(both, {"a": NEXT, "b": NEXT})


def test_future_times_may_have_another_zone():
    covariates = fit(frame())
    wanted = {"a": NEXT.tz_localize("Europe/Berlin")}
    expected = covariates.encode_future(future(), {"a": NEXT})["a"]
    data = future(ds=wanted["a"].tz_convert("Asia/Tokyo"))
    assert_array_equal(covariates.encode_future(data, wanted)["a"], expected)
    with pytest.raises(ValueError, match=r"history has the time zone Europe/Berlin, but .* no"):
        covariates.encode_future(future(), wanted)


def test_future_times_and_ids_may_be_integers():
    columns = Columns("shop", "step", "sales", futr=["temp"])
    data = frame(3, ds=range(6)).rename(columns={"unique_id": "shop", "ds": "step", "y": "sales"})
    data = data[["shop", "step", "sales", "temp"]]
    covariates = fit(data, columns)
    ahead = pd.DataFrame({"shop": 3, "step": [7, 6], "temp": [60.0, 10.0]})
    found = covariates.encode_future(ahead, {3: times_after(1, 5, 2)}, columns)
    [series] = read(data, columns)
    assert_array_equal(found[3], covariates.encode_rows(series)[0][[0, 5]])
    with pytest.raises(ValueError, match="step must be an integer, got 2024"):
        dated = ahead.assign(step=NEXT[:2])
        covariates.encode_future(dated, {3: times_after(1, 5, 2)}, columns)
    with pytest.raises(ValueError, match="no rows of series 3; it has series '3'"):
        covariates.encode_future(ahead.assign(shop="3"), {3: times_after(1, 5, 2)}, columns)


# ---- holidays ----


def test_days_around_holidays_are_flagged():
    times = pd.date_range("2023-12-24", "2024-01-02")
    flags = HolidayCalendar("DE").rows(times)  # holidays: 25 and 26 December, 1 January
    assert_array_equal(flags[:, 0], [0, 1, 1, 0, 0, 0, 0, 0, 1, 0])
    assert_array_equal(flags[:, 1], [1, 1, 0, 0, 0, 0, 0, 1, 0, 0])
    assert_array_equal(flags[:, 2], [0, 0, 1, 1, 0, 0, 0, 0, 0, 1])


def test_holidays_follow_the_local_clock():
    hours = pd.date_range("2023-12-31 22:00", periods=3, freq="h", tz="UTC")
    calendar = HolidayCalendar("DE")
    local = hours.tz_convert("Europe/Berlin")
    assert_array_equal(calendar.rows(hours)[:, 0], [0, 0, 1])
    assert_array_equal(calendar.rows(local)[:, 0], [0, 1, 1])


def test_subdivisions_have_their_own_holidays():
    epiphany = pd.DatetimeIndex(["2024-01-06"])
    assert HolidayCalendar("DE").rows(epiphany)[0, 0] == 0
    assert HolidayCalendar("DE-BY").rows(epiphany)[0, 0] == 1


@pytest.mark.parametrize("years", [(2024, 1999, 2031), (2031, 2024, 1999)])
def test_calendar_grows_in_both_directions(years):
    calendar = HolidayCalendar("US")
    for year in (*years, *years):
        days = pd.DatetimeIndex([f"{year}-07-04", f"{year}-12-31"])
        flags = calendar.rows(days)
        assert flags[0, 0] == flags[1, 1] == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("XX", r"such as 'DE' or 'US', or of a subdivision, such as 'DE-BY' .* got 'XX'"),
        ("Germany", "got 'Germany'"),
        ("", "got ''"),
        ("DE-XX", "'DE' has no subdivision 'XX'; its subdivisions are: .*BY"),
        ("DE-", "'DE' has no subdivision ''"),
        (49, "holidays must be a code such as 'DE', got 49"),
    ],
)
def test_unknown_holiday_code_raises(code, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        fit(frame(), holidays=code)


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(ModuleNotFoundError, match=r'holidays is not .* "eattn\[timeseries\]"'):
        HolidayCalendar("DE")


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (range(6), "holidays need times, but ds contains integers, such as 0"),
        (pd.date_range("2024", periods=6, freq="MS"), "at most one day, but freq is 'MS'"),
        (pd.date_range("2024", periods=6, freq="W-SUN"), "at most one day, but freq is 'W-SUN'"),
    ],
)
def test_holidays_need_steps_of_at_most_one_day(times, reason):
    with pytest.raises(ValueError, match=reason):
        fit(frame(ds=times), holidays="DE")


@pytest.mark.parametrize("freq", ["B", "D", "12h", "15min"])
def test_holidays_are_known_in_advance(freq):
    times = pd.date_range("2024-12-02", periods=20, freq=freq)
    data = pd.DataFrame({"ds": times, "y": 1.0})
    covariates = fit(data, Columns(), holidays="DE")
    ahead = times_after(freq, times[-1], 40)
    found = covariates.encode_future(None, {"y": ahead})["y"]
    assert_array_equal(found, HolidayCalendar("DE").rows(ahead))


# ---- streams ----


def test_rows_of_a_stream_match_the_history():
    covariates = fit(frame(), holidays="DE")
    data = frame(
        temp=[np.nan, 20, np.nan, 1e12, 50, 0],
        kind=["x", None, "?", "y", None, "z"],
        load=[None, True, False, None, True, False],
    )
    [series] = read(data)
    futr, hist = covariates.encode_rows(series)
    before = None
    for number, cells in enumerate(data[["temp", "kind", "load"]].to_dict("records")):
        text = {name: "" if pd.isna(cell) else str(cell) for name, cell in cells.items()}
        one = replace(row(**text), ds=DAYS[[number]])
        found = covariates.encode_rows(one, before)
        assert_array_equal(found[0], futr[[number]])
        assert_array_equal(found[1], hist[[number]])
        before = tuple(x[-1] for x in found)


def test_stream_row_must_have_valid_values():
    covariates = fit(frame())
    cells = {"temp": 1.0, "kind": "x", "load": pd.NA}
    futr, hist = covariates.encode_rows(row(**cells))
    assert (futr.shape, hist.tolist()) == ((1, 4), [[0.0]])
    for cell in ("warm", "inf", 1e200):
        with pytest.raises(ValueError, match="temp must be a finite number, got"):
            covariates.encode_rows(row(**cells | {"temp": cell}))


def test_static_values_are_encoded_like_rows():
    columns = Columns(stat=["size", "kind"])
    parts = [
        frame(name, size=size, kind=kind)
        for name, size, kind in (("a", 0, "x"), ("b", 10, "y"), ("c", None, None))
    ]
    series = read(pd.concat(parts)[["unique_id", "ds", "y", "size", "kind"]], columns)
    covariates = Covariates.fit(series, columns)
    a, b, c = (covariates.encode_history(s).stat for s in series)
    assert a[0] == -b[0] < 0 and c[0] == 0
    assert_array_equal([a[1:], b[1:], c[1:]], [[1, 0], [0, 1], [0, 0]])
    [unseen] = read(frame(size=1e9, kind="z")[["unique_id", "ds", "y", "size", "kind"]], columns)
    assert_array_equal(covariates.encode_history(unseen).stat, [LIMIT, 0, 0])
    [text] = read(frame(size="big", kind="x")[["unique_id", "ds", "y", "size", "kind"]], columns)
    with pytest.raises(ValueError, match="series 'a': size must be a finite number, got 'big'"):
        covariates.encode_history(text)
