"""Find the time column of a table and parse its times."""

import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from eattn._checks import need_pandas
from eattn.data.read_csv import Rows

if TYPE_CHECKING:
    import pandas as pd

NAMES = ("ds", "date", "datetime", "timestamp", "time")
DAYS = (19000101, 21001231)  # YYYYMMDD
# Range of Unix times from 1973 to 5138 in each unit.
EPOCHS = {"s": (1e8, 1e11), "ms": (1e11, 1e14), "us": (1e14, 1e17), "ns": (1e17, 1e20)}


def time_column(rows: Rows, *, without: Collection[str | None] = ()) -> str:
    """Return the column with a common name for times, or else the only one with times."""
    is_number = need_pandas().api.types.is_numeric_dtype
    frame, path = rows.frame, rows.path
    names = [name for name in frame.columns if name not in without]
    usual = [name for name in names if name.strip().lower() in NAMES]
    if len(usual) == 1:
        return usual[0]
    parsing = [
        name
        for name in usual or names
        if not is_number(frame[name]) and _parse(frame[name]).notna().all()
    ]
    if len(parsing) == 1:
        return parsing[0]
    if parsing:
        raise ValueError(
            f"{path} has several time columns: {', '.join(parsing)}; choose one with time (--time)"
        )
    raise ValueError(
        f"{path} has no obvious time column; choose one of {', '.join(names)} with time (--time)"
    )


def parse_times(rows: Rows, column: str) -> "pd.Series[Any]":
    """Parse a column as datetime64; times with a zone are converted to UTC.

    Integers that are not dates, such as steps or years, stay integers.
    """
    rows.check_complete(column, "time")
    values = rows.frame[column]
    times = _parse(values)
    if need_pandas().api.types.is_integer_dtype(values) and times.isna().all():
        return values.astype("int64")
    if times.isna().any():
        bad = int(times.isna().to_numpy().argmax())
        rows.fail(column, bad, "a time such as 2024-01-31 12:00")
    return times


def _parse(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Parse times in the format that fits most values; the others become NaT."""
    pandas = need_pandas()
    if pandas.api.types.is_datetime64_any_dtype(values):
        return pandas.to_datetime(values, utc=True).dt.tz_localize(None)
    if pandas.api.types.is_numeric_dtype(values):
        for unit, (low, high) in EPOCHS.items():
            if values.between(low, high, inclusive="left").all():
                return pandas.to_datetime(values, unit=unit)
        if values.between(*DAYS).all():
            days = values.astype("int64").astype(str)
            return pandas.to_datetime(days, format="%Y%m%d", errors="coerce")
        return pandas.Series(pandas.NaT, index=values.index)
    guess = pandas.tseries.api.guess_datetime_format
    with warnings.catch_warnings():  # warns about days above 12; the other order parses them
        warnings.simplefilter("ignore")
        guesses = [guess(str(values.iloc[0]), dayfirst=first) for first in (False, True)]
    tried = []
    for style in ("ISO8601", *dict.fromkeys(filter(None, guesses))):
        times = pandas.to_datetime(values, format=style, utc=True, errors="coerce")
        tried.append(times.dt.tz_localize(None))
        if times.notna().all():
            break
    return min(tried, key=lambda times: int(times.isna().sum()))
