"""Covariates: encode the columns that a forecaster reads besides the values of a series.

Known-future columns (`futr`) have values in the past and at the steps to forecast, past-only
columns (`hist`) in the past, and static columns (`stat`) one value per series. Numbers are scaled,
and each category becomes one column.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn.data.freq import Times, times_after, wall
from eattn.timeseries.holiday_calendar import WIDTH, HolidayCalendar
from eattn.timeseries.inputs import (
    MAX_VALUE,
    Columns,
    RawValues,
    TimeSeries,
    category,
    check_column,
    read_times,
    read_values,
    with_index,
)
from eattn.timeseries.scaling import CONSTANT

LIMIT = 10.0  # scaled numbers are clipped to ±LIMIT
NORMAL_IQR = 1.349  # interquartile range of the standard normal distribution
MAX_CATEGORIES = 32  # rarer categories share one column
TRUTH = {"true": 1.0, "false": 0.0}  # booleans in rows of text
DAY = np.timedelta64(1, "D")

Array = NDArray[np.float32]
Rows = tuple[Array, Array]  # encoded known-future and past-only columns, [F] or [n, F]
Where = Callable[[int], str]  # describes a row in error messages


class Encoded(NamedTuple):
    """Encoded covariates of one series."""

    futr: Array  # [n, F]
    hist: Array  # [n, F]
    stat: Array  # [F]


@dataclass(frozen=True)
class Numbers:
    """Numeric column, scaled by median and interquartile range; 0 and 1 stay as they are."""

    name: str
    center: float
    scale: float
    width: ClassVar[int] = 1

    @classmethod
    def fit(cls, name: str, values: NDArray[np.float64]) -> Self:
        """Compute center and scale of the known values, independent of outliers."""
        known = values[~np.isnan(values)]
        if np.isin(known, (0.0, 1.0)).all():
            return cls(name, 0.0, 1.0)
        low, center, high = np.percentile(known, (25, 50, 75)).tolist()
        scale, rounding = (high - low) / NORMAL_IQR, CONSTANT * abs(center)
        if scale <= rounding:  # most values are equal, such as hours without rain
            apart = np.abs(known - center)
            apart = apart[apart > rounding]
            scale = float(np.median(apart)) if len(apart) else abs(center) or 1.0
        return cls(name, center, scale)

    def encode(self, values: RawValues, where: Where) -> NDArray[np.float64]:
        """Return values [n] as [n, 1], with NaN for missing values."""
        if values.dtype == object:
            values = _each(self._number, values, where)
        with np.errstate(over="ignore"):
            scaled = (values - self.center) / self.scale
        return scaled.clip(-LIMIT, LIMIT)[:, None]

    def _number(self, value: Any) -> float:
        """Return a number, text that holds one, or a boolean as float; NaN if it is missing."""
        if _is_missing(value):
            return np.nan
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = TRUTH.get(str(value).lower(), np.inf)
        if abs(number) > MAX_VALUE:
            raise ValueError(f"{self.name} must be a finite number, got {str(value)!r}")
        return number


@dataclass(frozen=True)
class Categories:
    """Column of categories, one-hot encoded.

    Other categories are 1 in an additional column if there were too many in training, and 0 in all
    columns otherwise.
    """

    name: str
    values: tuple[str, ...]
    other: bool

    @classmethod
    def fit(cls, name: str, values: NDArray[Any]) -> Self:
        """Find the most frequent categories."""
        counts = pd.Series(values, dtype=object).value_counts().items()
        ordered = [value for value, _ in sorted(counts, key=lambda pair: (-pair[1], pair[0]))]
        kept = tuple(sorted(ordered[:MAX_CATEGORIES]))
        return cls(name, kept, len(ordered) > MAX_CATEGORIES)

    @property
    def width(self) -> int:
        return len(self.values) + self.other

    def encode(self, values: RawValues, where: Where) -> NDArray[np.float64]:
        """Return values [n] as [n, F], with NaN for missing values."""
        if values.dtype != object:
            values = np.array([None if x != x else category(x) for x in values.tolist()], object)
        codes, unknown = self._codes, len(self.values)
        return self._table[[codes.get(value, unknown) for value in values]]

    @cached_property
    def _codes(self) -> dict[str | None, int]:
        missing = len(self.values) + 1
        return {value: i for i, value in enumerate(self.values)} | {None: missing, "": missing}

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        """Rows of all categories, of other categories, and of missing values."""
        known = np.eye(len(self.values) + 1, self.width)  # the last row is 1 in the column `other`
        return np.vstack([known, np.full(self.width, np.nan)])


Encoder = Numbers | Categories


@dataclass(frozen=True, eq=False)
class Covariates:
    """Encoders of the covariates, fitted on the training series.

    Missing values in the past are replaced by the last known value of their series, and by 0, which
    is the median of numbers, before the first one.
    """

    futr: tuple[Encoder, ...] = ()
    hist: tuple[Encoder, ...] = ()
    stat: tuple[Encoder, ...] = ()
    holidays: HolidayCalendar | None = None

    @classmethod
    def fit(
        cls, series: Sequence[TimeSeries], columns: Columns, holidays: str | None = None
    ) -> Self:
        """Fit the encoders of the covariates in `columns` on regularized series."""
        calendar = None if holidays is None else HolidayCalendar(holidays)
        if calendar is not None:
            _check_days(series[0])

        def rows(name: str) -> Encoder:
            return _fit(name, np.concatenate([s.exog[name] for s in series]))

        def constants(name: str) -> Encoder:
            values = [s.static[name] for s in series]
            text = any(isinstance(value, str) for value in values)
            return _fit(name, np.array(values, dtype=object if text else np.float64))

        return cls(
            tuple(map(rows, columns.futr)),
            tuple(map(rows, columns.hist)),
            tuple(map(constants, columns.stat)),
            calendar,
        )

    @cached_property
    def futr_width(self) -> int:
        """Number of encoded known-future columns, with those of holidays."""
        return sum(e.width for e in self.futr) + WIDTH * (self.holidays is not None)

    @cached_property
    def hist_width(self) -> int:
        """Number of encoded past-only columns."""
        return sum(e.width for e in self.hist)

    def encode_history(self, series: TimeSeries) -> Encoded:
        """Encode the rows and the static columns of a series."""
        static = {
            name: np.array([value], np.float64 if isinstance(value, float) else object)
            for name, value in series.static.items()
        }
        where = f"series {series.unique_id!r}"
        blocks = [e.encode(static[e.name], lambda _: where) for e in self.stat]
        return Encoded(*self.encode_rows(series), _filled(blocks, None, 1)[0])

    def encode_rows(self, series: TimeSeries, before: Rows | None = None) -> Rows:
        """Encode the rows of a series as [n, F] for known-future and for past-only columns.

        `before` is the encoded row before the first one, which replaces missing values.
        """

        def where(row: int) -> str:
            at = f"row {row}" if series.ds is None else series.ds[row]
            return f"series {series.unique_id!r}, {at}"

        futr, hist = (
            _filled([e.encode(series.exog[e.name], where) for e in encoders], last, len(series))
            for encoders, last in zip((self.futr, self.hist), before or (None, None), strict=True)
        )
        if self.holidays is not None:
            futr = np.concatenate([futr, self.holidays.rows(series.ds)], 1)
        return futr, hist

    def encode_future(
        self,
        futr_df: pd.DataFrame | None,
        wanted: Mapping[Any, Times],
        columns: Columns | None = None,
    ) -> dict[Any, Array]:
        """Encode the known-future columns at the wanted times of each series as [H, F].

        Parameters
        ----------
        futr_df : DataFrame or None
            Rows of all series and times with the known-future columns; other rows and columns are
            ignored. None is enough if the only known-future columns are holidays.
        wanted : mapping of unique_id to times
            Times to forecast.
        columns : Columns, optional
            Names of the columns of series and times.

        Raises
        ------
        ValueError
            If a column, series, row or value is missing; the message names it.
        """
        if not self.futr_width:
            return {name: np.zeros((len(each), 0), np.float32) for name, each in wanted.items()}
        first, *others = wanted.values()
        times = first.append(others)
        lengths = [len(each) for each in wanted.values()]
        blocks: list[NDArray[Any]] = [np.empty((len(times), 0))]
        if self.futr:
            names = [encoder.name for encoder in self.futr]
            frame, rows = _find_rows(futr_df, names, wanted, times, columns or Columns())

            def where(row: int) -> str:
                name = list(wanted)[int(np.searchsorted(np.cumsum(lengths), row, side="right"))]
                return f"futr_df, row {rows[row]} (series {name!r}, {times[row]})"

            for encoder in self.futr:
                values = read_values(frame[encoder.name].iloc[rows], where)
                block = encoder.encode(values, where)
                if (missing := np.isnan(block[:, 0])).any():
                    at = where(int(missing.argmax()))
                    raise ValueError(f"{at}: {encoder.name} must not be missing")
                blocks.append(block)
        if self.holidays is not None:
            blocks.append(self.holidays.rows(times))
        together = np.concatenate(blocks, 1, dtype=np.float32)
        return dict(zip(wanted, np.split(together, np.cumsum(lengths)[:-1]), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON can hold it."""
        parts = {"futr": self.futr, "hist": self.hist, "stat": self.stat}
        saved: dict[str, Any] = {name: [asdict(e) for e in part] for name, part in parts.items()}
        return saved | {"holidays": self.holidays and self.holidays.code}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Restore the state from the result of `to_dict`."""
        futr, hist, stat = (tuple(map(_restored, saved[name])) for name in ("futr", "hist", "stat"))
        code = saved["holidays"]
        return cls(futr, hist, stat, None if code is None else HolidayCalendar(code))


def _find_rows(
    futr_df: pd.DataFrame | None,
    names: Sequence[str],
    wanted: Mapping[Any, Times],
    times: Times,
    columns: Columns,
) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Return the frame, and the position of the row of each wanted series and time.

    `times` are all wanted times in order.
    """
    if not isinstance(futr_df, pd.DataFrame):
        got = "" if futr_df is None else f", got {type(futr_df).__name__}"
        needed = ", ".join((columns.id, columns.time, *names))
        raise ValueError(f"futr_df must be a data frame with the columns {needed}{got}")
    frame = with_index(futr_df, columns)
    options = {columns.time: "time_col"} | dict.fromkeys(names, "futr_exog_list")
    if len(wanted) > 1:
        options[columns.id] = "id_col"
    for name, option in options.items():
        check_column(name, option, frame, "futr_df")
    if frame.empty:
        raise ValueError("futr_df has no rows")
    ids = frame.get(columns.id)
    have = read_times(frame[columns.time], ids)
    _check_comparable(have, times, columns.time)
    series = np.repeat(np.arange(len(wanted)), [len(each) for each in wanted.values()])
    own = np.zeros(len(frame), np.int64)  # position of the series in `wanted`, or -1
    if ids is not None:
        own = pd.Index(list(wanted), dtype=object).get_indexer(ids.astype(object))
    # A series and a time become one number, so that rows are found by binary search.
    ticks = np.unique(np.concatenate([_ticks(have), _ticks(times)]), return_inverse=True)[1]
    keys = (ticks.max() + 1) * np.concatenate([own, series]) + ticks
    rows = np.flatnonzero(own >= 0)
    rows = rows[keys[rows].argsort(kind="stable")]
    start, end = (np.searchsorted(keys[rows], keys[len(own) :], side) for side in ("left", "right"))
    if (wrong := end - start != 1).any():
        at = int(wrong.argmax())
        name = list(wanted)[series[at]]
        if ids is not None and not (own == series[at]).any():
            known = ", ".join(map(repr, ids.unique().tolist()[:5]))
            raise ValueError(f"futr_df has no rows of series {name!r}; it has series {known}")
        problem = "two rows" if end[at] > start[at] else "no row"
        span = wanted[name]
        raise ValueError(
            f"futr_df has {problem} of series {name!r} at {times[at]}; it must have one row for"
            f" each of the {len(span)} times from {span[0]} to {span[-1]}"
        )
    return frame, rows[start]


def _fit(name: str, values: RawValues) -> Encoder:
    """Fit an encoder of the kind that the values have."""
    if pd.isna(values).all():
        raise ValueError(f"column {name!r} has no values: all are missing")
    return (Categories if values.dtype == object else Numbers).fit(name, values)


def _restored(saved: Mapping[str, Any]) -> Encoder:
    if "center" in saved:
        return Numbers(saved["name"], saved["center"], saved["scale"])
    return Categories(saved["name"], tuple(saved["values"]), saved["other"])


def _filled(blocks: Sequence[NDArray[np.float64]], last: Array | None, length: int) -> Array:
    """Join columns, and replace missing values by the last known ones, `last` or 0."""
    if not blocks:
        return np.zeros((length, 0), np.float32)
    x = np.concatenate(blocks, 1, dtype=np.float32)
    missing = np.isnan(x)
    if not missing.any():
        return x
    start = np.zeros(x.shape[1]) if last is None else last[: x.shape[1]]
    full = np.concatenate([start[None], x], dtype=np.float32)
    rows = np.arange(len(full))[:, None] * ~np.pad(missing, ((1, 0), (0, 0)))
    return np.take_along_axis(full, np.maximum.accumulate(rows), 0)[1:]


def _each(convert: Callable[[Any], float], values: RawValues, where: Where) -> NDArray[np.float64]:
    """Convert values one by one; errors say where."""
    found = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            found[row] = convert(value)
        except ValueError as error:
            raise ValueError(f"{where(row)}: {error}") from None
    return found


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value == "" or bool(value != value)


def _ticks(times: Times) -> NDArray[np.int64]:
    """Return times as integers that do not depend on the time zone."""
    dated = isinstance(times, pd.DatetimeIndex)
    ticks: NDArray[np.int64] = times.as_unit("ns").asi8 if dated else times.to_numpy()
    return ticks


def _check_comparable(new: Times, history: Times, name: str) -> None:
    """Raise unless times of futr_df can be compared with those of the history."""
    if new.dtype.kind != history.dtype.kind:
        kind = "an integer" if history.dtype.kind == "i" else "a time"
        raise ValueError(f"futr_df: {name} must be {kind}, got {new[0]}")
    zones = [getattr(times, "tz", None) for times in (history, new)]
    if (zones[0] is None) != (zones[1] is None):
        have, other = (f"the time zone {tz}" if tz else "no time zone" for tz in zones)
        raise ValueError(
            f"futr_df: the history has {have}, but {new[0]} has {other}; use a zone for both or"
            " for neither"
        )


def _check_days(series: TimeSeries) -> None:
    """Raise unless a series has times with steps of at most one day, as holidays need."""
    assert series.ds is not None and series.freq is not None
    if isinstance(series.freq, int):
        raise ValueError(f"holidays need times, but ds contains integers, such as {series.ds[0]}")
    steps = np.diff(wall(times_after(series.freq, series.ds[-1], 8)).to_numpy())
    if steps.min() > DAY:
        raise ValueError(f"holidays need steps of at most one day, but freq is {series.freq!r}")
