"""Series as users have them: long data frames (unique_id, ds, y), pandas Series, arrays, lists."""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eattn._checks import need_pandas

if TYPE_CHECKING:
    import pandas as pd

ID, TIME, VALUE = "unique_id", "ds", "y"
ALONE = "y"  # what a series without a unique_id is called
LARGEST = 1e100  # beyond it squares overflow

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rows:
    """What was given for one series: times that rise, and values, NaN where missing.

    The name is None where there was none, and so are times: values of an array follow each other.
    """

    name: Any
    times: "pd.Index[Any] | None"
    values: Values


def rows_of(data: Any) -> list[Rows]:
    """The series in a data frame, a pandas Series, an array or a list, as they come in it."""
    pandas = need_pandas()
    if isinstance(data, pandas.DataFrame):
        return _from_frame(data)
    if isinstance(data, pandas.Series):
        index = data.index
        dated = isinstance(index, pandas.DatetimeIndex | pandas.PeriodIndex)
        return [_checked(None, _times(index, ALONE) if dated else None, data)]
    if not isinstance(data, list | tuple) and not hasattr(data, "__array__"):
        kind = type(data).__name__
        raise TypeError(
            f"series must come in a data frame, a Series, an array or a list, got {kind}"
        )
    values = np.asarray(data)
    if values.ndim > 1:
        raise ValueError(
            f"an array must be one series, [n], got shape {values.shape}: put several into"
            f" a data frame with columns {ID}, {TIME}, {VALUE}"
        )
    return [_checked(None, None, pandas.Series(np.atleast_1d(values)))]


def id_dtype(data: Any) -> Any:
    """What unique_id is made of."""
    frame = _with_id(data) if isinstance(data, need_pandas().DataFrame) else {}
    return frame[ID].dtype if ID in frame else np.dtype(object)


def _from_frame(frame: "pd.DataFrame") -> list[Rows]:
    frame = _with_id(frame)
    names = [str(name) for name in frame.columns]
    for wanted in (TIME, VALUE):
        if wanted not in names:
            near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
            told = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:12])}"
            raise ValueError(f"df must have a column {wanted!r}: {told}")
    if frame.empty:
        raise ValueError("df has no rows")
    if ID not in names:
        return [_checked(None, _times(frame[TIME], ALONE), frame[VALUE])]
    if frame[ID].isna().any():
        row = frame.index[int(frame[ID].isna().to_numpy().argmax())]
        raise ValueError(f"{ID} is missing in row {row}")
    groups = frame.groupby(ID, sort=False, observed=True)
    return [_checked(_plain(name), _times(g[TIME], name), g[VALUE]) for name, g in groups]


def _with_id(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Older frames of this kind have the names in the index."""
    return frame.reset_index() if frame.index.name == ID else frame


def _plain(name: Any) -> Any:
    name = name.item() if isinstance(name, np.generic) else name
    if not isinstance(name, str | int | float):
        raise TypeError(f"{ID} must be text or numbers, got {type(name).__name__} {name!r}")
    return name


def _times(column: Any, name: Any) -> "pd.Index[Any]":
    """Timestamps of nanoseconds, or int64."""
    pandas = need_pandas()
    index = pandas.Index(column)
    if isinstance(index, pandas.PeriodIndex):
        index = index.to_timestamp()
    if index.isna().any():
        raise ValueError(f"series {name!r}: {TIME} is missing in row {int(index.isna().argmax())}")
    if pandas.api.types.is_integer_dtype(index.dtype):
        return index.astype(np.int64)
    if not isinstance(index, pandas.DatetimeIndex):
        index = _parsed(index, name)
    if index.tz is not None:
        raise ValueError(
            f"series {name!r}: {TIME} must be without a time zone, got {index.tz}:"
            f" df['{TIME}'].dt.tz_convert('UTC').dt.tz_localize(None) has none"
        )
    return pandas.DatetimeIndex(index.as_unit("ns"), freq=None)


def _parsed(index: "pd.Index[Any]", name: Any) -> "pd.DatetimeIndex":
    """Text as in ISO 8601, or Python's dates."""
    pandas = need_pandas()
    if pandas.api.types.is_numeric_dtype(index.dtype):
        raise TypeError(
            f"series {name!r}: {TIME} must be times or integers, got {index.dtype} {index[0]}"
        )
    try:
        found: pd.DatetimeIndex = pandas.to_datetime(index, format="ISO8601")
        return found
    except (ValueError, TypeError):
        good = pandas.to_datetime(index.astype(str), format="ISO8601", errors="coerce", utc=True)
        bad = index[int(good.isna().argmax())]
        raise ValueError(
            f"series {name!r}: {TIME} must be times such as 2024-01-31 12:00, got {str(bad)!r}"
        ) from None


def _checked(name: Any, times: "pd.Index[Any] | None", column: "pd.Series[Any]") -> Rows:
    """With values that are numbers, and times that rise."""
    label = ALONE if name is None else name
    if not len(column):
        raise ValueError(f"series {label!r} has no values")
    values = need_pandas().to_numeric(column, errors="coerce")
    values = values.to_numpy(np.float64, na_value=np.nan)
    bad = np.isnan(values) & column.notna().to_numpy() | (np.abs(values) > LARGEST)
    if bad.any():
        row = int(bad.argmax())
        at = f"row {row}" if times is None else times[row]
        raise ValueError(
            f"series {label!r}, {at}: {VALUE} must be a finite number,"
            f" got {str(column.iloc[row])!r}"
        )
    if times is not None:
        _check_rising(label, times)
    return Rows(name, times, values)


def _check_rising(name: Any, times: "pd.Index[Any]") -> None:
    ticks = times.astype(np.int64).to_numpy()
    wrong = np.diff(ticks) <= 0
    if not wrong.any():
        return
    row = int(wrong.argmax()) + 1
    if ticks[row] in ticks[:row]:
        raise ValueError(f"series {name!r}: {times[row]} is there twice")
    raise ValueError(
        f"series {name!r}: {times[row]} comes after {times[row - 1]}; sort the rows by time"
    )
