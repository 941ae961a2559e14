"""Input of the forecaster: data frames (unique_id, ds, y), pandas Series, arrays and lists.

`read_series` parses and checks the input; `regularize` puts all series on one even frequency.
"""

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn.data.freq import (
    Freq,
    Time,
    Times,
    check_freq,
    infer_freq,
    missing_share,
    positions,
    times_after,
)
from eattn.data.parse_times import parse_times
from eattn.data.tables import id_column

ID, TIME, VALUE = "unique_id", "ds", "y"
DEFAULT_ID = "y"  # unique_id of a series without one
MAX_VALUE = 1e100  # squares of larger values overflow
MAX_GAP = 1000  # a longer gap, if also longer than the series, comes from a wrong time
MIN_ROWS = 3  # fewer rows say too little about their frequency
TWICE = 0.45  # share of missing steps, just below that of times with twice the step

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """One series with increasing times and NaN for missing values.

    `read_series` leaves `freq` unset, and `unique_id` and `ds` if the input lacks them.
    `regularize` sets them all; `ds` then has every step from the first known value.
    """

    unique_id: Any
    ds: Times | None
    y: Values
    freq: Freq | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a data frame that hold the series, the times and the values."""

    id: str = ID
    time: str = TIME
    target: str = VALUE

    def names(self) -> tuple[str, str, str]:
        """Return the three names."""
        return self.id, self.time, self.target


def read_series(data: Any, columns: Columns | None = None) -> list[TimeSeries]:
    """Return the series in a data frame, pandas Series, array or list, in their order."""
    if isinstance(data, pd.DataFrame):
        return _from_frame(data, columns or Columns())
    if isinstance(data, pd.Series):
        dated = isinstance(data.index, pd.DatetimeIndex | pd.PeriodIndex)
        times = read_times(data.index.to_series()) if dated else None
        name = data.name if isinstance(data.name, str | int | None) else str(data.name)
        return [check_series(name, times, data)]
    if not isinstance(data, list | tuple) and not hasattr(data, "__array__"):
        kind = type(data).__name__
        raise TypeError(
            f"series must be in a data frame, a pandas Series, an array or a list, got {kind}"
        )
    values = np.asarray(data)
    if values.ndim > 1:
        raise ValueError(
            f"an array must be one series [n], got shape {values.shape}; pass several series as"
            f" a data frame with columns {ID}, {TIME}, {VALUE}"
        )
    return [check_series(None, None, pd.Series(np.atleast_1d(values)))]


def id_dtype(data: Any, columns: Columns) -> Any:
    """Return the dtype of unique_id, which forecasts keep."""
    frame = _with_id(data, columns) if isinstance(data, pd.DataFrame) else {}
    return frame[columns.id].dtype if columns.id in frame else np.dtype(object)


def _from_frame(frame: pd.DataFrame, columns: Columns) -> list[TimeSeries]:
    frame = _with_id(frame, columns).reset_index(drop=True)
    names = [str(name) for name in frame.columns]
    needed = [columns.time, columns.target, *([columns.id] if columns.id != ID else [])]
    for option, wanted in zip(("time_col", "target_col", "id_col"), needed, strict=False):
        if wanted not in names:
            near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:12])}"
            raise ValueError(f"df must have a column {wanted!r} ({option}): {hint}")
    if frame.empty:
        raise ValueError("df has no rows")
    ids = frame[columns.id] if columns.id in names else None
    if ids is not None and ids.isna().any():
        raise ValueError(f"{columns.id} is missing in row {int(ids.isna().to_numpy().argmax())}")
    if unused := [name for name in names if name not in (columns.id, *needed)]:
        # stacklevel: the caller of fit, update or with_history
        warnings.warn(f"columns of df that are not used: {', '.join(unused)}", stacklevel=4)
    times = read_times(frame[columns.time], ids)
    if ids is None:
        if not times.is_unique and (name := id_column(frame.assign(ds=times), columns.names())):
            raise ValueError(
                f"{times[times.duplicated()][0]} occurs twice in {columns.time}; if column {name!r}"
                f" identifies the series, set id_col={name!r}"
            )
        return [check_series(None, times, frame[columns.target])]
    groups = frame.groupby(columns.id, sort=False, observed=True).indices
    order = dict.fromkeys(ids)
    return [
        check_series(_plain_id(name), times[groups[name]], frame[columns.target].iloc[groups[name]])
        for name in order
    ]


def _with_id(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Return the frame with unique_id as a column; older Nixtla frames have it in the index."""
    return frame.reset_index() if frame.index.name == columns.id else frame


def _plain_id(name: Any) -> Any:
    name = name.item() if isinstance(name, np.generic) else name
    if not isinstance(name, str | int | float):
        raise TypeError(f"{ID} must be text or numbers, got {type(name).__name__} {name!r}")
    return name


def read_times(column: pd.Series, ids: pd.Series | None = None) -> Times:
    """Return times as timestamps in nanoseconds or as int64."""

    def fail(row: int, problem: str, hint: str = "") -> NoReturn:
        at = f"series {DEFAULT_ID if ids is None else ids.iloc[row]!r}, row {row}"
        got = str(column.iloc[row])
        raise ValueError(f"{at}: {column.name or TIME} {problem}, got {got!r}{hint}")

    if column.isna().any():
        fail(int(column.isna().to_numpy().argmax()), "must not be missing")
    if pd.api.types.is_integer_dtype(column.dtype):
        return pd.Index(column.astype(np.int64))
    if pd.api.types.is_numeric_dtype(column.dtype):
        raise TypeError(
            f"{column.name or TIME} must be times or integers, got {column.dtype} {column.iloc[0]}"
        )
    ask = f"use pd.to_datetime(df[{column.name!r}], format=...)"
    times, _ = parse_times(column, fail, groups=ids, ask=ask)
    index = pd.Index(times)
    return pd.DatetimeIndex(index, freq=None) if times.dtype.kind == "M" else index


def check_series(unique_id: Any, times: Times | None, column: pd.Series) -> TimeSeries:
    """Return a TimeSeries sorted by time; raise unless values are finite and times unique."""
    name = DEFAULT_ID if unique_id is None else unique_id
    if not len(column):
        raise ValueError(f"series {name!r} has no values")
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    bad = np.isnan(values) & column.notna().to_numpy() | (np.abs(values) > MAX_VALUE)
    if bad.any():
        row = int(bad.argmax())
        at = f"row {row}" if times is None else times[row]
        raise ValueError(
            f"series {name!r}, {at}: {VALUE} must be a finite number, got {str(column.iloc[row])!r}"
        )
    if times is None:
        return TimeSeries(unique_id, None, values)
    if not times.is_unique:
        again = times[times.duplicated()].unique()
        more = f" ({len(again)} times occur more than once)" if len(again) > 1 else ""
        raise ValueError(f"series {name!r}: {again[0]} occurs twice{more}")
    if not times.is_monotonic_increasing:
        order = times.argsort()
        times, values = times[order], values[order]
    return TimeSeries(unique_id, times, values)


def regularize(series: Sequence[TimeSeries], freq: Freq | None = None) -> list[TimeSeries]:
    """Put all series on one even frequency, with NaN for every missing step.

    The frequency is `freq`, or else inferred from the greatest common step of all series. Series
    without values are left out with a warning.
    """
    known = [_named(s) for s in series if not np.isnan(s.y).all()]
    if empty := [_named(s).unique_id for s in series if np.isnan(s.y).all()]:
        if not known:
            raise ValueError(f"series {empty[0]!r}: every value is missing")
        names = ", ".join(map(repr, empty[:5])) + (", …" if len(empty) > 5 else "")
        # stacklevel: the caller of fit or with_history
        warnings.warn(f"series without values are skipped: {names}", stacklevel=3)
    used = check_freq(freq) if freq is not None else _common_freq(known)
    filled = [_on_grid(s, used, given=freq is not None) for s in known]
    if freq is not None:
        for s in known:
            check_step(s.unique_id, s.ds, used)
    pairs = zip(known, filled, strict=True)
    sparse = [s for s, full in pairs if len(s) >= MIN_ROWS and len(full) > 2 * len(s)]
    if sparse:
        name, share = sparse[0].unique_id, missing_share(used, [sparse[0].ds])
        others = f" (and {len(sparse) - 1} more)" if len(sparse) > 1 else ""
        warnings.warn(
            f"series {name!r}{others}: {share:.0%} of the steps are missing at"
            f" {'the frequency' if freq is not None else 'the inferred frequency'} {used!r}; check"
            " the format of the dates, or round the times to an even frequency",
            stacklevel=3,
        )
    return filled


def check_step(name: Any, times: Times, freq: Freq) -> None:
    """Raise if most steps at `freq` are missing because the times have a longer step."""
    sparse = len(times) >= MIN_ROWS and missing_share(freq, [times]) > TWICE
    own = infer_own_freq(times) if sparse else None
    if own is not None and own != freq:
        raise ValueError(f"series {name!r}: the times have the frequency {own!r}, not {freq!r}")


def _named(series: TimeSeries) -> TimeSeries:
    """Return the series with an id, with times, and from its first known value."""
    known = ~np.isnan(series.y)
    first = int(known.argmax())
    times = pd.Index(np.arange(len(series))) if series.ds is None else series.ds
    name = DEFAULT_ID if series.unique_id is None else series.unique_id
    return TimeSeries(name, times[first:], series.y[first:])


def _common_freq(series: Sequence[TimeSeries]) -> Freq:
    if all(len(s) == 1 for s in series):
        raise ValueError(
            f"series {series[0].unique_id!r} has only one row, so its frequency cannot be inferred;"
            " add rows or set freq"
        )
    try:
        return infer_freq([s.ds for s in series])
    except ValueError:
        for s in series:  # name the series that has no frequency
            try:
                _ = len(s) == 1 or infer_freq([s.ds])
            except ValueError as error:
                raise ValueError(f"series {s.unique_id!r}: {error}") from None
        raise


def _on_grid(series: TimeSeries, freq: Freq, *, given: bool) -> TimeSeries:
    name, times = series.unique_id, series.ds
    assert times is not None
    if isinstance(freq, int) != (times.dtype.kind == "i"):
        kind = "times" if isinstance(freq, int) else "integers"
        raise ValueError(f"freq={freq!r} cannot be used: {TIME} contains {kind}")
    try:
        ds, y = fill_gaps(freq, times, series.y)
    except ValueError as error:
        own = infer_own_freq(times) if given else None
        reason = f"the times have the frequency {own!r}, not {freq!r}: " if own else ""
        raise ValueError(f"series {name!r}: {reason}{error}") from None
    return TimeSeries(name, ds, y, freq)


def infer_own_freq(times: Times) -> Freq | None:
    """Return the frequency of times if it explains most of them, or else None."""
    try:
        own = infer_freq([times]) if len(times) >= MIN_ROWS else None
        return own if own and missing_share(own, [times]) <= 0.5 else None
    except ValueError:
        return None


def fill_gaps(
    freq: Freq, times: Times, values: Values, *, after: Time | None = None, count: int = 0
) -> tuple[Times, Values]:
    """Return a row for every step from the first time, or the one after `after`; NaN in gaps.

    `count` is the number of values up to `after`.
    """
    anchored = times if after is None else times.insert(0, after)
    rows = positions(freq, anchored)
    if (rows < 0).any():
        wrong = anchored[int((rows < 0).argmax())]
        raise ValueError(f"{wrong} is not a whole number of steps ({freq}) after {anchored[0]}")
    gaps, limit = np.diff(rows), max(MAX_GAP, count + len(times))
    if after is None and len(gaps) and np.median(gaps) > limit:
        raise ValueError(
            f"the times are uneven: their greatest common step is {freq}, but most steps are more"
            f" than {limit:,} times as long; round the times, as by df[{TIME!r}].dt.round('h')"
        )
    if (gaps > limit).any():
        row = int((gaps > limit).argmax())
        raise ValueError(
            f"{anchored[row + 1]} is {gaps[row]:,} steps ({freq}) after {anchored[row]}; a gap of"
            f" more than {limit:,} steps is taken for a wrong time"
        )
    full = np.full(int(rows[-1]) + 1, np.nan)
    full[rows[len(anchored) - len(times) :]] = values
    following = times_after(freq, anchored[0], len(full) - 1)
    return (times[:1].append(following), full) if after is None else (following, full[1:])
