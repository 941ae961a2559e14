"""Times in a column: which column holds them, and what they say."""

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn.data.read_csv import Place, check_given

if TYPE_CHECKING:
    import pandas as pd

NAMES = ("ds", "date", "datetime", "timestamp", "time")
# Seconds, and thousandths, millionths of them …, since 1970: from 1973 to 5138 in each unit.
DAYS = (19000101, 21001231)  # or written without signs
EPOCHS = {"s": (1e8, 1e11), "ms": (1e11, 1e14), "us": (1e14, 1e17), "ns": (1e17, 1e20)}


def time_column(frame: "pd.DataFrame", path: Path, *, without: Collection[str | None] = ()) -> str:
    """The column of times: the one with a usual name, or else the only one that parses."""
    import pandas as pd

    names = [name for name in frame.columns if name not in without]
    usual = [name for name in names if name.strip().lower() in NAMES]
    if len(usual) == 1:
        return usual[0]
    parsing = [
        name
        for name in usual or names
        if not pd.api.types.is_numeric_dtype(frame[name]) and _parse(frame[name]) is not None
    ]
    if len(parsing) == 1:
        return parsing[0]
    if parsing:
        raise ValueError(
            f"{path} has several columns of times, {', '.join(parsing)}: say which one is meant"
        )
    raise ValueError(
        f"{path} has no column of times, its columns are {', '.join(names)}: say which one is meant"
    )


def parse_times(values: "pd.Series[Any]", path: Path, place: Place) -> "pd.Series[Any]":
    """The column as datetime64, without zones: times that name one are turned to UTC.

    Integers that are no dates are steps or years, and stay what they are.
    """
    import pandas as pd

    check_given("time", values, path, place)
    times = _parse(values)
    if times is not None:
        return times
    if pd.api.types.is_integer_dtype(values):
        return values.astype("int64")
    row = _first_bad(values)
    raise ValueError(
        f"{path}, {place(row)}, column {values.name!r} must be a time such as "
        f"2024-01-31 12:00, got {str(values.iloc[row])!r}"
    )


def _parse(values: "pd.Series[Any]") -> "pd.Series[Any] | None":
    """None when not every value is a time, all of them written in one way."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(values):
        return pd.to_datetime(values, utc=True).dt.tz_localize(None)
    if pd.api.types.is_numeric_dtype(values):
        for unit, (low, high) in EPOCHS.items():
            if values.between(low, high, inclusive="left").all():
                return pd.to_datetime(values, unit=unit)
        if values.between(DAYS[0], DAYS[1]).all():
            return pd.to_datetime(values.astype("int64").astype(str), format="%Y%m%d")
        return None
    for style in _formats(values.iloc[0]):
        try:
            times = pd.to_datetime(values, format=style, utc=True)
        except ValueError:
            continue
        return None if times.isna().any() else times.dt.tz_localize(None)
    return None


def _formats(first: Any) -> list[str]:
    """Ways of writing times that the first of them fits, ISO 8601 before others."""
    from pandas.tseries.api import guess_datetime_format

    with warnings.catch_warnings():  # of days above 12, which the other order of day and month gets
        warnings.simplefilter("ignore")
        guesses = [guess_datetime_format(str(first), dayfirst=day) for day in (False, True)]
    return ["ISO8601", *dict.fromkeys(guess for guess in guesses if guess)]


def _first_bad(values: "pd.Series[Any]") -> int:
    """The first row that is no time in the way most of the rows are written."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(values):
        return 0
    read = [
        pd.to_datetime(values, format=style, utc=True, errors="coerce")
        for style in _formats(values.iloc[0])
    ]
    best = min(read, key=lambda times: int(times.isna().sum()))
    return int(best.isna().to_numpy().argmax())
