"""Input of the forecaster: data frames (unique_id, ds, y), pandas Series, arrays and lists.

`read_series` parses and checks the input; `regularize` adds a row for every missing step.
"""

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn.timeseries.freq import Freq, Time, Times, check_freq, infer_freq, positions, times_after

ID, TIME, VALUE = "unique_id", "ds", "y"
DEFAULT_ID = "y"  # unique_id of a series without one
MAX_VALUE = 1e100  # squares of larger values overflow

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


def read_series(data: Any) -> list[TimeSeries]:
    """Return the series in a data frame, pandas Series, array or list, in their order."""
    if isinstance(data, pd.DataFrame):
        return _from_frame(data)
    if isinstance(data, pd.Series):
        dated = isinstance(data.index, pd.DatetimeIndex | pd.PeriodIndex)
        return [check_series(None, _times(data.index, DEFAULT_ID) if dated else None, data)]
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


def id_dtype(data: Any) -> Any:
    """Return the dtype of unique_id, which forecasts keep."""
    frame = _with_id(data) if isinstance(data, pd.DataFrame) else {}
    return frame[ID].dtype if ID in frame else np.dtype(object)


def _from_frame(frame: pd.DataFrame) -> list[TimeSeries]:
    frame = _with_id(frame)
    names = [str(name) for name in frame.columns]
    for wanted in (TIME, VALUE):
        if wanted not in names:
            near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:12])}"
            raise ValueError(f"df must have a column {wanted!r}: {hint}")
    if frame.empty:
        raise ValueError("df has no rows")
    if ID not in names:
        return [check_series(None, _times(frame[TIME], DEFAULT_ID), frame[VALUE])]
    if frame[ID].isna().any():
        row = frame.index[int(frame[ID].isna().to_numpy().argmax())]
        raise ValueError(f"{ID} is missing in row {row}")
    groups = frame.groupby(ID, sort=False, observed=True)
    return [check_series(_plain_id(name), _times(g[TIME], name), g[VALUE]) for name, g in groups]


def _with_id(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with unique_id as a column; older Nixtla frames have it in the index."""
    return frame.reset_index() if frame.index.name == ID else frame


def _plain_id(name: Any) -> Any:
    name = name.item() if isinstance(name, np.generic) else name
    if not isinstance(name, str | int | float):
        raise TypeError(f"{ID} must be text or numbers, got {type(name).__name__} {name!r}")
    return name


def _times(column: Any, name: Any) -> Times:
    """Return times as timestamps in nanoseconds or as int64."""
    index = pd.Index(column)
    if isinstance(index, pd.PeriodIndex):
        index = index.to_timestamp()
    if index.isna().any():
        raise ValueError(f"series {name!r}: {TIME} is missing in row {int(index.isna().argmax())}")
    if pd.api.types.is_integer_dtype(index.dtype):
        return index.astype(np.int64)
    if not isinstance(index, pd.DatetimeIndex):
        index = _parse_times(index, name)
    if index.tz is not None:
        raise ValueError(
            f"series {name!r}: {TIME} must not have a time zone, got {index.tz}; remove it with"
            f" df['{TIME}'].dt.tz_convert('UTC').dt.tz_localize(None)"
        )
    return pd.DatetimeIndex(index.as_unit("ns"), freq=None)


def _parse_times(index: Any, name: Any) -> Times:
    """Parse ISO 8601 text or Python dates."""
    if pd.api.types.is_numeric_dtype(index.dtype):
        raise TypeError(
            f"series {name!r}: {TIME} must be times or integers, got {index.dtype} {index[0]}"
        )
    try:
        return pd.to_datetime(index, format="ISO8601")
    except (ValueError, TypeError):
        good = pd.to_datetime(index.astype(str), format="ISO8601", errors="coerce", utc=True)
        bad = index[int(good.isna().argmax())]
        raise ValueError(
            f"series {name!r}: {TIME} must be times such as 2024-01-31 12:00, got {str(bad)!r}"
        ) from None


def check_series(unique_id: Any, times: Times | None, column: pd.Series) -> TimeSeries:
    """Return a TimeSeries; raise unless values are finite numbers and times increase."""
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
    if times is not None:
        _check_rising(name, times)
    return TimeSeries(unique_id, times, values)


def _check_rising(name: Any, times: Times) -> None:
    ticks = times.astype(np.int64).to_numpy()
    wrong = np.diff(ticks) <= 0
    if not wrong.any():
        return
    row = int(wrong.argmax()) + 1
    if ticks[row] in ticks[:row]:
        raise ValueError(f"series {name!r}: {times[row]} occurs twice")
    raise ValueError(
        f"series {name!r}: {times[row]} comes after {times[row - 1]}; sort the rows by time"
    )


def regularize(
    series: Sequence[TimeSeries], freq: Freq | None = None, *, default: Freq | None = None
) -> list[TimeSeries]:
    """Add a row with NaN for every missing step of each series.

    The frequency of each series is `freq`, or else inferred from its times. A series that is too
    short gets the most common frequency of the others, or else `default`.
    """
    named = [
        TimeSeries(
            DEFAULT_ID if s.unique_id is None else s.unique_id,
            pd.Index(np.arange(len(s))) if s.ds is None else s.ds,
            s.y,
        )
        for s in series
    ]
    freqs = [check_freq(freq)] * len(named) if freq is not None else _infer_freqs(named, default)
    return [_on_grid(s, own) for s, own in zip(named, freqs, strict=True)]


def _infer_freqs(series: Sequence[TimeSeries], default: Freq | None) -> list[Freq]:
    own = [_own_freq(s) if len(s) > 2 else None for s in series]
    known = Counter(freq for freq in own if freq is not None)
    common = known.most_common(1)[0][0] if known else default
    return [freq or _short_freq(s, common) for s, freq in zip(series, own, strict=True)]


def _own_freq(series: TimeSeries) -> Freq:
    try:
        return infer_freq(series.ds)
    except ValueError as error:
        raise ValueError(f"series {series.unique_id!r}: {error}") from None


def _short_freq(series: TimeSeries, common: Freq | None) -> Freq:
    if common is not None and (positions(common, series.ds) >= 0).all():
        return common
    if len(series) == 1:
        raise ValueError(
            f"series {series.unique_id!r} has only one row, so its frequency cannot be inferred;"
            " add rows or set freq"
        )
    return _own_freq(series)


def _on_grid(series: TimeSeries, freq: Freq) -> TimeSeries:
    name, times = series.unique_id, series.ds
    assert times is not None
    if isinstance(freq, int) != (times.dtype.kind == "i"):
        kind = "times" if isinstance(freq, int) else "integers"
        raise ValueError(f"freq={freq!r} cannot be used: {TIME} contains {kind}")
    known = ~np.isnan(series.y)
    if not known.any():
        raise ValueError(f"series {name!r}: every value is missing")
    first = int(known.argmax())
    try:
        return TimeSeries(name, *fill_gaps(freq, times[first:], series.y[first:]), freq)
    except ValueError as error:
        raise ValueError(f"series {name!r}: {error}") from None


def fill_gaps(
    freq: Freq, times: Times, values: Values, *, after: Time | None = None
) -> tuple[Times, Values]:
    """Return a row for every step from the first time, or the one after `after`; NaN in gaps."""
    anchored = times if after is None else times.insert(0, after)
    rows = positions(freq, anchored)
    if (rows < 0).any():
        wrong = anchored[int((rows < 0).argmax())]
        raise ValueError(f"{wrong} is not a whole number of steps ({freq}) after {anchored[0]}")
    full = np.full(int(rows[-1]) + 1, np.nan)
    full[rows[len(anchored) - len(times) :]] = values
    following = times_after(freq, anchored[0], len(full) - 1)
    return (times[:1].append(following), full) if after is None else (following, full[1:])
