"""Times: order of day and month, periods, times of day and zones."""

import datetime
import zoneinfo

import pandas as pd
import pytest

from eattn.data.parse_times import parse_times

MONTHS = [(year, month) for year in (2015, 2016) for month in range(1, 13)]
PARIS = zoneinfo.ZoneInfo("Europe/Paris")


def parse(*cells, **options) -> pd.DatetimeIndex:
    def fail(row: int, problem: str, hint: str = "") -> None:
        raise ValueError(f"row {row} {problem}{hint}")

    return pd.DatetimeIndex(parse_times(pd.Series(cells), fail, **options)[0])


@pytest.mark.parametrize("style", ["{1:02}/01/{0}", "01/{1:02}/{0}", "1-{1}-{0}", "1.{1}.{0}"])
def test_order_of_day_and_month_gives_an_even_frequency(style):
    times = parse(*(style.format(*month) for month in MONTHS))
    assert times.equals(pd.date_range("2015-01-01", periods=24, freq="MS"))
    missing = parse(*(style.format(*month) for month in MONTHS[:5] + MONTHS[7:]))
    assert missing.equals(times.delete([5, 6]))


def test_order_is_found_from_each_series():
    cells = [f"01/{month:02}/2015" for month in range(1, 13)]
    groups = pd.Series(["a"] * 12 + ["b"] * 12)
    with pytest.raises(ValueError, match="must be unambiguous, which can be"):
        parse(*cells, *cells, groups=groups)  # twelve days or twelve months
    hours = [f"{cell} {hour}:00" for cell in cells[:2] for hour in range(24)]
    assert parse(*hours)[24] == pd.Timestamp("2015-01-02")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["01.02.2015", "02.02.2015"], ["2015-02-01", "2015-02-02"]),
        (["01.13.2015", "02.13.2015"], ["2015-01-13", "2015-02-13"]),
        (["1.2.15", "2.2.15"], ["2015-02-01", "2015-02-02"]),
        (["2010Q1", "2010Q2"], ["2010-01-01", "2010-04-01"]),
        (["Q3 2010", "Q4 2010"], ["2010-07-01", "2010-10-01"]),
        (["2010M01", "2010M12"], ["2010-01-01", "2010-12-01"]),
        (["Jan 2010", "Dec 2010"], ["2010-01-01", "2010-12-01"]),
        (["May 2010", "June 2010"], ["2010-05-01", "2010-06-01"]),
        (["Jan-10", "Feb-10"], ["2010-01-01", "2010-02-01"]),
        (["01.2010", "02.2010"], ["2010-01-01", "2010-02-01"]),
        (["January 5, 2010", "February 5, 2010"], ["2010-01-05", "2010-02-05"]),
        (["31.12.2015 24:00", "01.01.2016 1:30"], ["2016-01-01", "2016-01-01 01:30"]),
        (["31.12.2015, 23:00", "01.01.2016"], ["2015-12-31 23:00", "2016-01-01"]),
        (["1/31/2015 12:00 AM", "1/31/2015 1:05:30 pm"], ["2015-01-31", "2015-01-31 13:05:30"]),
        (["1577836800.5", "1577836801.5"], ["2020-01-01 00:00:00.5", "2020-01-01 00:00:01.5"]),
        ([datetime.date(2020, 1, 1)], ["2020-01-01"]),
    ],
)
def test_formats_are_recognised(cells, expected):
    assert parse(*cells).equals(pd.DatetimeIndex(expected))


@pytest.mark.parametrize(
    ("cells", "zone"),
    [
        (["2024-01-01T00:00Z", "2024-01-01 01:00 UTC"], "UTC"),
        (["2024-01-01T00:00+0530", "2024-01-01T01:00+05:30"], "UTC+05:30"),
        (["2024-03-31T00:00+01:00", "2024-04-01T00:00+02:00"], "Europe/Berlin"),
        (["2024-11-02T00:00-05:00", "2024-11-04T00:00-06:00"], "America/Chicago"),
        (["2024-01-01T00:00-05:00", "2024-01-01T00:00+09:00"], "UTC"),  # no zone has both
        (["31/03/2024 00:00+01:00", "01/04/2024 00:00+02:00"], "Europe/Berlin"),
        ([datetime.datetime(2024, 3, day, tzinfo=PARIS) for day in (30, 31)], "Europe/Paris"),
        ([pd.Timestamp("2024-03-31T00+01"), pd.Timestamp("2024-04-01T00+02")], "Europe/Berlin"),
    ],
)
def test_zones_are_kept(cells, zone):
    times = parse(*cells)
    assert str(times.tz) == zone
    if isinstance(cells[0], str) and cells[0].startswith("2024"):
        expected = [pd.Timestamp(cell) for cell in cells]
        assert [time.tz_convert("UTC") for time in times] == [
            time.tz_convert("UTC") for time in expected
        ]


def test_times_with_and_without_zone_raise():
    with pytest.raises(ValueError, match="row 1 must have a time zone if and only if"):
        parse("2024-01-01T00:00Z", "2024-01-01T01:00")
    with pytest.raises(ValueError, match="row 1 must have a time zone if and only if"):
        parse(datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2, tzinfo=PARIS))
    zone = datetime.timezone(datetime.timedelta(hours=1), "local")
    with pytest.raises(ValueError, match="zone must have a name such as Europe/Berlin"):
        parse(datetime.datetime(2024, 1, 1, tzinfo=zone))


def test_given_format_applies_to_dates_or_to_all():
    assert parse("01/02/2015 13:00", date_format="%d/%m/%Y")[0] == pd.Timestamp("2015-02-01 13:00")
    assert parse("2015|02|13h", date_format="%Y|%m|%Hh")[0] == pd.Timestamp("2015-02-01 13:00")
    with pytest.raises(ValueError, match="row 1 must have the format %d/%m/%Y"):
        parse("01/02/2015", "2015-02-01", date_format="%d/%m/%Y")
    with pytest.raises(ValueError, match=r"row 0 must be a time .*; for another format, set"):
        parse("1. Mai 2015", "2. Mai 2015")
