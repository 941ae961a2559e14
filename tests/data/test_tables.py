"""Tables: columns are found and parsed, and errors name line and column."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from eattn.data import load_forecasting, read_table

GOOD = "date,load,OT\n2020-01-01 00:00,1,2.5\n2020-01-01 01:00,,-3\n2020-01-01 02:00,3,4e2\n"


@pytest.fixture
def csv(tmp_path):
    def write(text: str | bytes, name: str = "toy.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def hours(*numbers: int) -> list[pd.Timestamp]:
    return [pd.Timestamp(2020, 1, 1, number) for number in numbers]


def test_times_become_ds_and_other_columns_numbers(csv):
    table = read_table(csv(GOOD))
    assert (table.name, table.time, table.columns) == ("toy", "date", ["load", "OT"])
    assert list(table.frame.columns) == ["ds", "load", "OT"]
    assert list(table.frame["ds"]) == hours(0, 1, 2)
    assert_array_equal(table.frame["load"], [1, np.nan, 3])
    assert_array_equal(table.frame["OT"], [2.5, -3, 400])
    assert (table.frame.dtypes.iloc[1:] == np.float64).all()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "windows"])
def test_delimiter_line_ending_and_gzip_do_not_matter(csv, delimiter, end):
    expected = read_table(csv(GOOD)).frame
    text = GOOD.replace(",", f" {delimiter}", 2).replace(",", delimiter)
    text = "\ufeff" + text.replace("\n", end + end)  # and blank lines
    for path in (csv(text, "a.txt"), csv(gzip.compress(text.encode()), "a.csv.gz")):
        pd.testing.assert_frame_equal(read_table(path).frame, expected)


def test_parquet_is_read_with_times_as_column_or_index(csv, tmp_path):
    expected = read_table(csv(GOOD))
    frame = expected.frame.rename(columns={"ds": "date"})
    late = frame.set_index(frame.index + 7)  # index of a slice of a longer frame
    for number, each in enumerate((frame, frame.set_index("date"), late)):
        path = tmp_path / f"{number}.parquet"
        each.to_parquet(path)
        table = read_table(path)
        assert table.time == "date"
        pd.testing.assert_frame_equal(table.frame, expected.frame)


def test_quoted_cells_may_contain_delimiters_and_line_breaks(csv):
    text = '"date","a, b","note"\n2020-01-01,1,"two\nlines"\n2020-01-02,"x",""\n'
    with pytest.raises(ValueError, match="line 4, column 'a, b' must be a finite number, got 'x'"):
        read_table(csv(text))
    assert read_table(csv(text.replace('"x"', '"2.5"'))).frame["a, b"].tolist() == [1, 2.5]
    with pytest.raises(ValueError, match="line 4: expected 3 cells as in the header, got 4"):
        read_table(csv(text.replace('"x"', "2,5")))


def test_target_drops_all_other_columns(csv):
    table = read_table(csv(GOOD.replace(",1,", ",one,")), target="OT")
    assert (table.target, table.columns) == ("OT", ["OT"])


def test_covariates_are_kept_as_numbers_or_text(csv):
    text = "date,load,temp,kind,note\n2020-01-01,1,2.5,a,x\n2020-01-02,2,,b,y\n2020-01-03,3,4,,z\n"
    table = read_table(csv(text), target="load", covariates=["temp", "kind"])
    assert list(table.frame.columns) == ["ds", "load", "temp", "kind"]
    assert_array_equal(table.frame["temp"], [2.5, np.nan, 4])
    assert table.frame["kind"].tolist()[:2] == ["a", "b"] and pd.isna(table.frame["kind"][2])
    assert (table.columns, table.unused) == (["load"], ("note",))
    assert read_table(csv(text), covariates=["temp", "kind"]).columns == ["load"]
    with pytest.raises(ValueError, match="no column 'tmp': did you mean 'temp'"):
        read_table(csv(text), covariates=["tmp"])
    with pytest.raises(ValueError, match="a covariate must be another column, got 'load'"):
        read_table(csv(text), target="load", covariates=["load"])


def test_text_and_unnamed_columns_are_ignored(csv):
    text = ",date,city,x\n0,2020-01-01,Rome,1\n1,2020-01-02,Oslo,2\n"
    table = read_table(csv(text))
    assert (table.columns, table.unused) == (["x"], ("city",))
    assert read_table(csv(GOOD), target="OT").unused == ("load",)


@pytest.mark.parametrize(
    ("header", "first", "second"),
    [
        ("when", "2020-01-01 00:00", "2020-01-01 01:00"),
        ("when", "1/1/2020 0:00", "1/1/2020 1:00"),
        ("when", "01 Jan 2020 00:00", "01 Jan 2020 01:00"),
        ("Timestamp", "1577836800", "1577840400"),
        ("time", "1577836800000", "1577840400000"),
        ("", "2020-01-01 00:00", "2020-01-01 01:00"),  # index written by pandas
    ],
)
def test_times_are_found_in_many_formats(csv, header, first, second):
    table = read_table(csv(f"{header},x,kind\n{first},1,a\n{second},2,b\n"))
    assert list(table.frame["ds"]) == hours(0, 1)
    assert table.frame["ds"].dtype == "datetime64[ns]"


@pytest.mark.parametrize(
    ("cells", "day"),
    [
        (["31/01/2020", "01/02/2020"], "2020-01-31"),
        (["01/02/2020", "13/02/2020"], "2020-02-01"),  # only the second row shows the order
        (["01/02/2020", "01/13/2020"], "2020-01-02"),
        (["20200102", "20200103"], "2020-01-02"),
    ],
)
def test_order_of_day_and_month_fits_all_rows(csv, cells, day):
    table = read_table(csv("date,x\n" + "".join(f"{cell},1\n" for cell in cells)))
    assert table.frame["ds"].iloc[0] == pd.Timestamp(day)


def test_common_name_selects_the_time_column(csv):
    path = csv("made,DS,x\n2020-01-02,2020-01-01,1\n2020-01-03,2020-01-02,2\n")
    assert read_table(path).time == "DS"
    assert read_table(path, "made").time == "made"


def test_several_series_are_identified(csv):
    text = "{},ds,y\nb,2020-01-01,1\na,2020-01-01,2\nb,2020-01-02,3\na,2020-01-02,4\n"
    for table in (
        read_table(csv(text.format("unique_id"))),
        read_table(csv(text.format("shop")), series="shop"),
    ):
        assert list(table.frame.columns) == ["ds", "unique_id", "y"]
        assert list(table.frame["unique_id"]) == ["b", "a", "b", "a"]
        assert table.columns == ["y"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "toy.csv is empty"),
        ("\n \n", "toy.csv is empty"),
        ("date,x\n", "toy.csv has a header but no rows"),
        ("date\n2020-01-01\n", "line 1: the header must name at least two columns, got 'date'"),
        ("2020-01-01,1\n2020-01-02,2\n", "line 1: the header must name .* got 2020-01-01, 1"),
        ("date,x,x\n2020-01-01,1,2\n", "line 1: two columns are named 'x'"),
        ("date,x\n2020-01-01,1\n\n2020-01-02\n", "line 4: expected 2 cells .* header, got 1"),
        ("date,x\n2020-01-01,1\n2020-01-02,2,3\n", "line 3: expected 2 cells .* header, got 3"),
        ('date,x\n2020-01-01,"1\n', "toy.csv: .* EOF inside string"),
        ("date,x\n2020-01-01,1\n2020-01-02,b\n", "line 3, column 'x' must be .* got 'b'"),
        ("date,x\n2020-01-01,1\n2020-01-02,-inf\n", "line 3, column 'x' .* got '-inf'"),
        ("date,x\n2020-01-01,1\n,2\n", "line 3: the time in column 'date' is missing"),
        ("date,x\n20200101,1\n20201399,2\n", "line 3, column 'date' .* got '20201399'"),
        ("date,x\n2020-01-01,1\nsoon,2\n", "line 3, column 'date' must be a time .* got 'soon'"),
        ("date,x\nsoon,1\n2020-01-01,2\n", "line 2, column 'date' must be a time .* got 'soon'"),
        ("time,x\n1.5,1\n2.5,2\n", "line 2, column 'time' must be a time such as .* got '1.5'"),
        ("time,x\n1,1\n1,2\n", "line 3: 1 already occurs in line 2"),
        ("unique_id,ds,y\na,2020-01-01,1\n,2020-01-02,2\n", "line 3: the series in .* is missing"),
        ("date,x\n2020-01-01,a\n", "has no numeric column besides 'date'"),
        ("a,b\n1,x\n2,y\n", "has no obvious time column; choose one of a, b with time"),
        ("a,b,x\n2020-01-01,2020-01-01,1\n", "several time columns: a, b; choose one with time"),
        (
            "unique_id,ds,y\na,2020-01-01,1\nb,2020-01-01,2\nb,2020-01-01,3\n",
            "line 4: 2020-01-01 00:00:00 already occurs in line 3 for series 'b'$",
        ),
        (
            "date,shop,y\n20200101,a,1\n20200101,b,2\n20200102,a,3\n20200102,b,4\n",
            r"line 3: .* occurs in line 2 \(2 rows repeat .*\); if column 'shop' .*\(--id shop\)",
        ),
        (
            "date,x\n01/02/2020,1\n01/03/2020,2\n",
            r"line 2, column 'date' must be unambiguous, got '01/02/2020', which can be 01 February"
            r" 2020 \(%d/%m/%Y\) or 02 January 2020 \(%m/%d/%Y\); set date_format \(--date",
        ),
        ("date;x\n2020-01-01;1,234\n", "'1,234' can mean 1234 or 1.234; set thousands"),
        ("date;x\n2020-01-01;1.234\n", "'1.234' can mean 1234 or 1.234; set thousands"),
        ("date,x\n2020-01-01,1,5\n", "expected 2 cells .* got 3; a decimal comma needs another"),
        ("date,x\n2020-01-01,5%\n2020-01-02,5\n", "line 3, column 'x' must be .* got '5'"),
        ("date,x\n2020-01-01,$5\n2020-01-02,€5\n", "line 3, column 'x' must be .* got '€5'"),
        ("when~x\n2020-01-01~1\n", r"at least two columns, got 'when~x'; set sep \(--sep\)"),
        (b"\xff\xfed", "toy.csv, line 1: not utf-16"),
        (b"date,x\n2020-01-01,1\x00\n", "toy.csv is a binary file; tables must be CSV"),
    ],
)
def test_errors_name_line_and_column(csv, text, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        read_table(csv(text))
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(target="ot"), "has no column 'ot': did you mean 'OT'"),
        (dict(time="dates"), "has no column 'dates': did you mean 'date'"),
        (dict(series="wholly other"), "has no column 'wholly other'; it has date, load, OT"),
        (dict(time="date", target="date"), "time and target must be different columns"),
        (dict(time="OT"), "line 2, column 'OT' must be a time such as .* got '2.5'"),
    ],
    ids=str,
)
def test_wrong_column_names_raise(csv, options, reason):
    with pytest.raises(ValueError, match=reason):
        read_table(csv(GOOD), **options)


@pytest.mark.parametrize(
    ("text", "options", "values"),
    [
        ("date;x\n01.02.2020;1.234,50 €\n01.03.2020;(2,5 €)\n", {}, [1234.5, -2.5]),
        ("date;x;z\n2020-02-01;1.234;0,5\n2020-03-01;2;7\n", dict(target="x"), [1234, 2]),
        ("date|x\n2020-02-01|$1,234.5\n2020-03-01|0\n", {}, [1234.5, 0]),
        ("date\tx\n2020-02-01\t12 %\n2020-03-01\t-\n", {}, [12, np.nan]),
        ("date,x\n2020-02-01,1 234.5\n2020-03-01,1'000\n", {}, [1234.5, 1000]),
        ("sep=;\ndate;x;\n2020-02-01;1,5;\n2020-03-01;2;\n", {}, [1.5, 2]),
        ("date;x\n2020-02-01;1,234\n2020-03-01;2\n", dict(decimal=","), [1.234, 2]),
        ("date;x\n2020-02-01;1,234\n2020-03-01;2\n", dict(thousands=","), [1234, 2]),
        ("date;x\n2020-02-01;1.234\n2020-03-01;2\n", dict(thousands="."), [1234, 2]),
        ("date;x\n2020-02-01;1.234\n2020-03-01;2\n", dict(like={"decimal": ","}), [1234, 2]),
        ("date~x\n2020-02-01~1\n2020-03-01~2\n", dict(sep="~"), [1, 2]),
        ("date\tx\n2020-02-01\t1\n2020-03-01\t2\n", dict(sep=r"\t"), [1, 2]),
        ("date,x\n02/01/2020,1\n03/01/2020,2\n", dict(date_format="%m/%d/%Y"), [1, 2]),
        ("date,x\n01/02/2020,1\n01/03/2020,2\n", dict(like={"date_format": "%d/%m/%Y"}), [1, 2]),
        ("date,x\n2020-03-01,2\n2020-02-01,1\n", {}, [1, 2]),
    ],
)
def test_numbers_and_dates_may_have_many_formats(csv, text, options, values):
    frame = read_table(csv(text), **options).frame
    assert_array_equal(frame["x"], values)
    assert list(frame["ds"]) == [pd.Timestamp("2020-02-01"), pd.Timestamp("2020-03-01")]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8-sig", "cp1250"])
def test_encoding_is_found_or_given(csv, encoding):
    path = csv("date,Größe\n2020-02-01,1\n".encode(encoding))
    if encoding == "cp1252":
        with pytest.warns(UserWarning, match=r"not UTF-8 and was read as cp1252 .*--encoding"):
            table = read_table(path)
    else:
        table = read_table(path, encoding=encoding if encoding == "cp1250" else None)
    assert table.columns == ["Größe"]
    with pytest.raises(ValueError, match="unknown encoding 'klingon'"):
        read_table(path, encoding="klingon")


def test_format_that_was_found_is_reported(csv):
    table = read_table(csv("date;x\n01.02.2020;1,5\n"))
    assert table.format == {"sep": ";", "decimal": ",", "date_format": "%d.%m.%Y"}
    with pytest.raises(ValueError, match="decimal and thousands must differ, both are ','"):
        read_table(csv(GOOD), decimal=",", thousands=",")
    with pytest.raises(ValueError, match="sep must be one character"):
        read_table(csv(GOOD), sep="::")


def test_rows_are_sorted_within_each_series(csv):
    text = "unique_id,ds,y\nb,2,1\na,2,2\nb,1,3\na,1,4\n"
    frame = read_table(csv(text)).frame
    assert frame["unique_id"].tolist() == ["b", "b", "a", "a"]
    assert frame["y"].tolist() == [3, 1, 4, 2]


def test_ids_keep_zeros_and_names_of_missing_values(csv):
    frame = read_table(csv("unique_id,ds,y\n007,1,1\nNA,1,2\n")).frame
    assert frame["unique_id"].tolist() == ["007", "NA"]


@pytest.mark.parametrize(("column", "first"), [("ds", 7), ("year", 1999)])
def test_times_may_be_integers(csv, column, first):
    table = read_table(csv(f"{column},y\n{first},1\n{first + 1},2\n"), time=column)
    assert table.frame["ds"].dtype == "int64"
    assert list(table.frame["ds"]) == [first, first + 1]


def test_second_column_named_ds_raises(csv):
    with pytest.raises(ValueError, match="rename column 'ds'"):
        read_table(csv("when,ds\n2020-01-01,1\n"), time="when")


def test_parquet_errors_name_the_row(csv):
    path = csv("not this", "toy.parquet")
    with pytest.raises(ValueError, match=r"toy.parquet is not a Parquet file"):
        read_table(path)
    times = pd.to_datetime(["2020-01-01", "2020-01-02"])
    pd.DataFrame({"ds": times, "y": ["1", "b"]}).to_parquet(path)
    with pytest.raises(ValueError, match="row 2, column 'y' must be a finite number, got 'b'"):
        read_table(path)


def test_error_for_missing_pandas_names_the_extra(csv, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pandas is not installed.*eattn\[timeseries\]"):
        read_table(csv(GOOD))


@pytest.mark.parametrize("file", ["Traffic/traffic.csv", "traffic_OT.csv"])
def test_traffic_is_loaded_from_either_file(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("date,0,1,OT\n2016-07-01 02:00:00,1,2,3\n2016-07-01 03:00:00,4,5,6\n")
    table = load_forecasting("traffic", data_dir=tmp_path)
    assert (table.name, table.target) == ("Traffic", "OT")
    assert table.columns == ["0", "1", "OT"]
    assert table.frame["OT"].tolist() == [3, 6]


def test_dataset_without_its_target_raises(tmp_path):
    (tmp_path / "ETTh1.csv").write_text("date,OT,x\n2016-07-01,none at all,1\n")
    with pytest.raises(ValueError, match=r"ETTh1.csv must have a numeric column 'OT'"):
        load_forecasting("ETTh1", data_dir=tmp_path)
