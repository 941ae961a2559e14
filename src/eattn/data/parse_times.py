"""Parse times: dates in many orders, periods such as 2010Q1, and time zones."""

import datetime
import re
import warnings
import zoneinfo
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from eattn._checks import need_pandas

if TYPE_CHECKING:
    import pandas as pd

EXAMPLE = "must be a time such as 2024-01-31 12:00"
DAYS = (19000101, 21001231)  # YYYYMMDD
# Range of Unix times from 1973 to 5138 in each unit.
EPOCHS = {"s": (1e8, 1e11), "ms": (1e11, 1e14), "us": (1e14, 1e17), "ns": (1e17, 1e20)}
ISO = "ISO8601"
# Formats of a date that cannot be confused with another one.
FORMATS = (
    *("%Y/%m/%d", "%Y.%m.%d", "%Y/%m", "%m/%Y", "%m.%Y", "%m-%Y", "%b-%Y", "%B-%Y", "%b-%y"),
    *("%d-%b-%Y", "%d-%b-%y", "%d/%b/%Y", "%d.%b.%Y", "%d %b %Y", "%d %B %Y", "%d. %B %Y"),
    *("%b %Y", "%B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
)
# Formats whose day and month can be confused, day first.
ORDERS = tuple(
    f"{order.replace('/', mark)}{mark}%{year}"
    for mark in "./-"
    for year in "Yy"
    for order in ("%d/%m", "%m/%d")
)
CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
HALF = r"[AaPp]\.?[Mm]\.?"
DATE_AND_CLOCK = re.compile(rf"^(.*?\d)(?:T|,?\s+)({CLOCK})\s*({HALF})?$")
ZONE = re.compile(
    rf"^(.*(?:T\d\d|\d:\d\d)[\d:.,]*(?:\s?{HALF})?)\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)$"
)
PERIODS = {
    re.compile(r"^(?P<year>\d{4})[-\s/]?[Qq](?P<part>[1-4])$"): 3,
    re.compile(r"^[Qq](?P<part>[1-4])[-\s/]?(?P<year>\d{4})$"): 3,
    re.compile(r"^(?P<year>\d{4})[Mm](?P<part>\d{1,2})$"): 1,
}
# Zones that are tried first if the offset of the times varies.
COMMON_ZONES = (
    *("Europe/London", "Europe/Berlin", "Europe/Athens", "America/New_York", "America/Chicago"),
    *("America/Denver", "America/Los_Angeles", "Australia/Sydney", "Pacific/Auckland"),
)

Fail = Callable[..., Any]  # fail(row, problem, hint="") raises about the cell in a row


def parse_times(
    values: "pd.Series[Any]",
    fail: Fail,
    *,
    date_format: str | None = None,
    like: str | None = None,
    groups: "pd.Series[Any] | None" = None,
    ask: str = "set date_format (--date-format)",
) -> "tuple[pd.Series[Any], str | None]":
    """Return times as datetime64[ns], in their zone if they have one, and the format of dates.

    Dates with dots have the day first. If the order of day and month is not clear, the order that
    gives an even frequency within each of the `groups` is chosen, or else the format `like`, which
    earlier data had. If that fails, the error ends with `ask`. Integers that are not dates, such as
    steps or years, stay integers.
    """
    pandas = need_pandas()
    types = pandas.api.types
    if isinstance(values.dtype, pandas.PeriodDtype):
        return values.dt.to_timestamp().astype("datetime64[ns]"), None
    if types.is_datetime64_any_dtype(values):
        check_zone(values.dt.tz)
        return values.dt.as_unit("ns"), None
    if not types.is_numeric_dtype(values):
        if not all(isinstance(value, str) for value in values):
            return _parse_objects(values, fail)
        text = values.astype("string").str.strip()
        if date_format or not text.str.fullmatch(r"[+-]?\d+|\d{9,}\.\d+").all():
            return _parse_text(text, fail, date_format, like, groups, ask)
        values = pandas.to_numeric(text)
    times = _parse_numbers(values)
    if times.isna().all() and types.is_integer_dtype(values):
        return values.astype("int64"), None
    if times.isna().any():
        fail(int(times.isna().to_numpy().argmax()), EXAMPLE)
    return times, None


def is_times(values: "pd.Series[Any]") -> bool:
    """Return whether all values of a column can be parsed as dates."""
    pandas = need_pandas()
    if pandas.api.types.is_datetime64_any_dtype(values):
        return True
    if pandas.api.types.is_numeric_dtype(values) or not len(values):
        return False
    text, _ = _split_zone(values.astype("string").str.strip())
    return any(times.notna().all() for _, times in _readings(text, None))


def check_zone(tz: Any) -> None:
    """Raise unless a saved model can store the zone by name."""
    try:
        need_pandas().Timestamp(0, tz=None if tz is None else str(tz))
    except (ValueError, KeyError):
        raise ValueError(
            f"the time zone must have a name such as Europe/Berlin, got {tz!r}; use tz_convert"
        ) from None


def _parse_numbers(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Parse Unix times and dates such as 20240131; other numbers become NaT."""
    pandas = need_pandas()
    for unit, (low, high) in EPOCHS.items():
        if values.between(low, high, inclusive="left").all():
            return pandas.to_datetime(values, unit=unit).astype("datetime64[ns]")
    if values.between(*DAYS).all():
        days = values.astype("int64").astype(str)
        return pandas.to_datetime(days, format="%Y%m%d", errors="coerce")
    return pandas.Series(pandas.NaT, index=values.index)


def _parse_objects(values: "pd.Series[Any]", fail: Fail) -> "tuple[pd.Series[Any], str | None]":
    """Parse Python dates and datetimes, or a mix of them with text."""
    pandas = need_pandas()
    zones = {getattr(value, "tzinfo", None) for value in values}
    if len(zones) == 1 and not any(isinstance(value, str) for value in values):
        [tz] = zones
        check_zone(tz)
        times = pandas.to_datetime(values, utc=tz is not None, errors="coerce")
        if times.isna().any():
            fail(int(times.isna().to_numpy().argmax()), EXAMPLE)
        times = times.astype("datetime64[ns, UTC]" if tz else "datetime64[ns]")
        return times.dt.tz_convert(tz) if tz else times, None
    text = values.map(lambda value: value.isoformat() if hasattr(value, "isoformat") else value)
    return parse_times(text.astype(str), fail)


def _parse_text(
    text: "pd.Series[Any]",
    fail: Fail,
    date_format: str | None,
    like: str | None,
    groups: "pd.Series[Any] | None",
    ask: str,
) -> "tuple[pd.Series[Any], str | None]":
    text, offsets = _split_zone(text)
    if offsets.notna().any() and offsets.isna().any():
        row = int((offsets.isna() != offsets.isna().iloc[0]).to_numpy().argmax())
        fail(row, "must have a time zone if and only if the other times have one")
    readings = list(_readings(text, date_format))
    complete = {style: times for style, times in readings if times.notna().all()}
    if not complete:
        style, times = min(readings, key=lambda reading: int(reading[1].isna().sum()))
        wanted = f"must have the format {date_format}" if date_format else EXAMPLE
        hint = f"; for another format, {ask}" if not date_format and times.isna().all() else ""
        fail(int(times.isna().to_numpy().argmax()), wanted, hint)
    style = _choose(complete, fail, like, groups, ask)
    times = complete[style].astype("datetime64[ns]")
    if offsets.isna().any():
        return times, style
    instants = (times - offsets).dt.tz_localize("UTC")
    return instants.dt.tz_convert(_find_zone(instants, offsets)), style


def _split_zone(text: "pd.Series[Any]") -> "tuple[pd.Series[Any], pd.Series[Any]]":
    """Return the text without its zone, and the offset from UTC, or NaT for times without one."""
    pandas = need_pandas()
    parts = text.str.extract(ZONE)
    zones = parts[1].str.replace(r"^(?:Z|UTC|GMT)$", "+00:00", regex=True)
    zones = zones.str.replace(r"^([+-]\d\d)$", r"\1:00", regex=True)
    zones = zones.str.replace(r"^([+-]\d\d)(\d\d)$", r"\1:\2", regex=True)
    return parts[0].fillna(text), pandas.to_timedelta(zones.astype(object) + ":00")


def _readings(
    text: "pd.Series[Any]", date_format: str | None
) -> "Iterator[tuple[str, pd.Series[Any]]]":
    """Yield formats and the times without a zone that they give; NaT where a format fails."""
    parse = need_pandas().to_datetime
    if date_format and ("%H" in date_format or "%I" in date_format or date_format == ISO):
        style = date_format.replace("%z", "").strip()
        yield date_format, parse(text, format=style, errors="coerce")
        return
    if not date_format:
        times = parse(text, format=ISO, errors="coerce")
        yield ISO, times
        if times.notna().all():
            return
    date, clock = _split_clock(text)
    if date_format:
        yield date_format, parse(date, format=date_format, errors="coerce") + clock
        return
    for pattern, months in PERIODS.items():
        if pattern.match(str(date.iloc[0])):
            parts = date.str.extract(pattern)
            month = (parts["part"].astype("Int64") - 1) * months + 1
            starts = parts["year"] + "-" + month.astype("string").str.zfill(2)
            yield ISO, parse(starts, format="%Y-%m", errors="coerce")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for style in (*FORMATS, *ORDERS):
            if parse(date.iloc[:1], format=style, errors="coerce").notna().all():
                yield style, parse(date, format=style, errors="coerce") + clock


def _split_clock(text: "pd.Series[Any]") -> "tuple[pd.Series[Any], pd.Series[Any]]":
    """Return the dates, and the times of day as durations; a missing time of day is 0."""
    pandas = need_pandas()
    parts = text.str.extract(DATE_AND_CLOCK)
    clock = parts[1].str.replace(",", ".").str.replace(r"^(\d+:\d+)$", r"\1:00", regex=True)
    clock = pandas.to_timedelta(clock.astype(object)).fillna(pandas.Timedelta(0))
    half = parts[2].str.lower().str[0]
    noon = clock >= pandas.Timedelta(hours=12)
    clock = clock.mask((half == "p").fillna(False) & ~noon, clock + pandas.Timedelta(hours=12))
    clock = clock.mask((half == "a").fillna(False) & noon, clock - pandas.Timedelta(hours=12))
    return parts[0].fillna(text), clock


def _choose(
    readings: "dict[str, pd.Series[Any]]",
    fail: Fail,
    like: str | None,
    groups: "pd.Series[Any] | None",
    ask: str,
) -> str:
    """Choose between the formats that fit all times."""
    different: dict[str, Any] = {}
    for style, times in readings.items():
        if not any(times.equals(other) for other in different.values()):
            different[style] = times
    first, *others = different
    if not others or first.startswith("%d."):
        return first
    shares = {style: _missing_share(times, groups) for style, times in different.items()}
    for limit in (0.0, 0.5):
        even = [style for style, share in shares.items() if share <= limit]
        if len(even) == 1:
            return even[0]
    if like not in different:
        row = int((different[first] != different[others[0]]).to_numpy().argmax())
        days = (f"{different[style].iloc[row]:%d %B %Y} ({style})" for style in different)
        fail(row, "must be unambiguous", f", which can be {' or '.join(days)}; {ask}")
    return str(like)


def _missing_share(times: "pd.Series[Any]", groups: "pd.Series[Any] | None") -> float:
    """Return the share of missing steps at the frequency of the times; 1 if they have none."""
    from eattn.data.freq import infer_freq, missing_share

    index = need_pandas().DatetimeIndex
    parts = [times] if groups is None else [part for _, part in times.groupby(groups.to_numpy())]
    series = [index(part.drop_duplicates().sort_values()) for part in parts]
    try:
        return missing_share(infer_freq(series), series)
    except ValueError:
        return 1.0


def _find_zone(instants: "pd.Series[Any]", offsets: "pd.Series[Any]") -> Any:
    """Return a zone with these offsets: a fixed one, or one with daylight saving time, or UTC."""
    if offsets.nunique() == 1:
        offset = offsets.iloc[0].to_pytimedelta()
        return datetime.timezone(offset) if offset else "UTC"
    order = instants.argsort()
    ordered = offsets.iloc[order].to_numpy()
    changes = {*(ordered[1:] != ordered[:-1]).nonzero()[0]}
    rows = sorted({0, len(order) - 1, *changes, *(row + 1 for row in changes)})
    known = [(instants.iloc[order.iloc[row]], offsets.iloc[order.iloc[row]]) for row in rows]
    for name in (*COMMON_ZONES, *sorted(zoneinfo.available_timezones())):
        zone = zoneinfo.ZoneInfo(name)
        if all(zone.utcoffset(at.tz_convert(zone)) == offset for at, offset in known):
            return name
    return "UTC"
