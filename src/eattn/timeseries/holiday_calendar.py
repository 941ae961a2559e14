"""Public holidays of a country or one of its subdivisions as columns that are known in advance."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eattn._checks import need
from eattn.data.freq import Times, wall

WIDTH = 3  # on a holiday, on the day before one, on the day after one
EPOCH = 719_163  # ordinal of 1970-01-01
Flags = NDArray[np.float32]


class HolidayCalendar:
    """Flags of public holidays, from the package `holidays`.

    Parameters
    ----------
    code : str
        ISO code of a country such as "DE", or of a subdivision such as "DE-BY".

    Examples
    --------
    >>> import pandas as pd
    >>> HolidayCalendar("DE").rows(pd.DatetimeIndex(["2024-12-24 18:00"])).tolist()
    [[0.0, 1.0, 0.0]]
    """

    def __init__(self, code: str) -> None:
        _check_code(code)
        self.code = code
        self._first = 0  # first day of the table, counted from 1970-01-01
        self._table = np.zeros((0, WIDTH), np.float32)

    def rows(self, times: Times) -> Flags:
        """Return the flags [n, 3] at times in local time."""
        days = wall(times).to_numpy().astype("datetime64[D]").astype(np.int64)
        if len(days):
            self._cover(int(days.min()), int(days.max()))
        return self._table[days - self._first]

    def _cover(self, first: int, last: int) -> None:
        """Extend the table to whole years that hold these days."""
        if self._first <= first and last < self._first + len(self._table):
            return
        if len(self._table):
            first = min(first, self._first)
            last = max(last, self._first + len(self._table) - 1)
        years = np.array([first, last], "datetime64[D]").astype("datetime64[Y]")
        start, end = (years + np.array([0, 1])).astype("datetime64[D]").astype(np.int64)
        span = range(*(years.astype(np.int64) + np.array([1969, 1972])))  # one more on each side
        days = np.array([day.toordinal() - EPOCH for day in self._holidays(span)], np.int64)
        table = np.zeros((int(end - start), WIDTH), np.float32)
        for column, shift in enumerate((0, -1, 1)):
            shifted = days + shift
            table[shifted[(shifted >= start) & (shifted < end)] - start, column] = 1
        self._first, self._table = int(start), table

    def _holidays(self, years: range) -> Any:
        country, _, part = self.code.partition("-")
        return _package().country_holidays(country, subdiv=part or None, years=years)


def _package() -> Any:
    return need("holidays", extra="timeseries")


def _check_code(code: str) -> None:
    if not isinstance(code, str):
        raise TypeError(f"holidays must be a code such as 'DE', got {code!r}")
    known = _package().list_supported_countries()
    country, dash, part = code.partition("-")
    if country not in known:
        raise ValueError(
            "holidays must be the ISO code of a country, such as 'DE' or 'US', or of a subdivision,"
            f" such as 'DE-BY' or 'US-CA', got {code!r}"
        )
    if dash and part not in known[country]:
        parts = ", ".join(known[country]) or "none"
        raise ValueError(
            f"holidays: {country!r} has no subdivision {part!r}; its subdivisions are: {parts}"
        )
