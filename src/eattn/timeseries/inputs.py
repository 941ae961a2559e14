"""Input of the forecaster: data frames in long or wide format, pandas Series, arrays and lists.

`read_series` parses and checks the input; `regularize` puts all series on one even frequency.
"""

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

# Results of pandas' infer_dtype for columns of Python objects that are read as numbers.
NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")

Values = NDArray[np.float64]
RawValues = NDArray[Any]  # float64 with NaN, or text with None for missing values


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
    exog: Mapping[str, RawValues] = field(default_factory=dict)  # covariates of the rows
    static: Mapping[str, Any] = field(default_factory=dict)  # float, str, or None if missing

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Any) -> "TimeSeries":
        """Return the rows in a slice, mask or array of positions."""
        ds = None if self.ds is None else self.ds[rows]
        exog = {name: values[rows] for name, values in self.exog.items()}
        return replace(self, ds=ds, y=self.y[rows], exog=exog)


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a data frame: series, times, values and covariates."""

    id: str = ID
    time: str = TIME
    target: str = VALUE
    futr: Sequence[str] = ()  # covariates that are known for future times
    hist: Sequence[str] = ()  # covariates that are known for past times only
    stat: Sequence[str] = ()  # covariates that are constant in each series

    def __post_init__(self) -> None:
        used = {self.id: "id_col", self.time: "time_col", self.target: "target_col"}
        for option, given in self.covariates().items():
            names = () if given is None else tuple(given)
            if isinstance(given, str) or not all(isinstance(name, str) for name in names):
                hint = f"; use [{given!r}]" if isinstance(given, str) else ""
                raise TypeError(f"{option} must be a list of column names, got {given!r}{hint}")
            for name in names:
                if name in used:
                    raise ValueError(
                        f"column {name!r} is in {used[name]} and again in {option}; choose one"
                    )
                used[name] = option
            object.__setattr__(self, option.removesuffix("_exog_list"), names)

    def names(self) -> tuple[str, str, str]:
        """Return the names of the columns of series, times and values."""
        return self.id, self.time, self.target

    def covariates(self) -> dict[str, Sequence[str]]:
        """Return the names of the covariates by parameter of the forecaster."""
        lists = {"futr": self.futr, "hist": self.hist, "stat": self.stat}
        return {f"{part}_exog_list": names for part, names in lists.items()}


def read_series(
    data: Any, columns: Columns | None = None, *, static: bool = True
) -> list[TimeSeries]:
    """Return the series in a data frame, pandas Series, array or list, in their order.

    A data frame in long format has the columns unique_id (optional for one series), ds and y. A
    data frame in wide format has neither unique_id nor y, but one numeric column per series. The
    index may hold the times. With `static=False`, static columns are neither needed nor read, as
    for new rows of known series.
    """
    columns = columns or Columns()
    ignored = () if static else columns.stat
    columns = replace(columns, stat=()) if ignored else columns
    if isinstance(data, pd.DataFrame):
        return _from_frame(data, columns, ignored)
    for option, names in columns.covariates().items():
        if names:
            raise TypeError(
                f"{option} needs a data frame with columns {columns.time}, {columns.target} and"
                f" {', '.join(names)}, got {type(data).__name__}"
            )
    if isinstance(data, pd.Series):
        dated = isinstance(data.index, pd.DatetimeIndex | pd.PeriodIndex)
        times = read_times(data.index.to_series()) if dated else None
        return [check_series(_column_id(data.name), times, data)]
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
    if isinstance(data, pd.DataFrame):
        frame = with_index(data, columns)
        if columns.id in frame:
            return frame[columns.id].dtype
        if _is_wide(frame, columns):
            return frame.columns.drop(columns.time).map(_column_id).infer_objects().dtype
    return np.dtype(object)


def with_index(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Return the frame with series and times as columns, if they are in the index."""
    if frame.columns.nlevels > 1:
        raise ValueError(f"column names must have one level, got {frame.columns[0]!r}")
    if not frame.columns.is_unique:
        raise ValueError(f"column {frame.columns[frame.columns.duplicated()][0]!r} occurs twice")
    index = frame.index
    if index.name == columns.id:  # older Nixtla frames
        return frame.reset_index()
    dated = isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) or index.name == columns.time
    if dated and columns.time not in frame:
        return frame.rename_axis(columns.time).reset_index()
    return frame.reset_index(drop=True)


def check_column(wanted: str, option: str, frame: pd.DataFrame, source: str = "df") -> None:
    """Raise if a column is missing, and suggest the nearest name."""
    if wanted not in frame:
        names = [str(name) for name in frame.columns]
        near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:12])}"
        raise ValueError(f"{source} must have a column {wanted!r} ({option}): {hint}")


def _from_frame(data: pd.DataFrame, columns: Columns, ignored: Sequence[str]) -> list[TimeSeries]:
    frame = with_index(data, columns)
    if _is_wide(frame, columns):
        if columns.time in data and isinstance(data.index, pd.DatetimeIndex | pd.PeriodIndex):
            _check_same_times(data.index, frame[columns.time])
        return _from_wide(frame, columns)
    needed = {columns.time: "time_col", columns.target: "target_col"}
    if columns.id != ID:
        needed[columns.id] = "id_col"
    for option, names in columns.covariates().items():
        needed |= dict.fromkeys(names, option)
    for name, option in needed.items():
        check_column(name, option, frame)
    if frame.empty:
        raise ValueError("df has no rows")
    ids = frame.get(columns.id)
    if ids is not None and ids.isna().any():
        raise ValueError(f"{columns.id} is missing in row {int(ids.isna().to_numpy().argmax())}")
    known = (columns.id, *needed, *ignored)
    if unused := [str(name) for name in frame.columns if name not in known]:
        # stacklevel: the caller of fit, update or with_history
        warnings.warn(f"columns of df that are not used: {', '.join(unused)}", stacklevel=4)
    times = read_times(frame[columns.time], ids)
    if ids is None:
        _check_one_series(times, frame, columns)
        return _split(frame, times, np.zeros(len(frame), np.int64), [None], columns)
    codes, found = pd.factorize(ids)
    return _split(frame, times, codes, [_plain_id(name) for name in found], columns)


def _split(
    frame: pd.DataFrame, times: Times, codes: NDArray[Any], ids: Sequence[Any], columns: Columns
) -> list[TimeSeries]:
    """Return the series of a frame in long format, whose rows belong to `ids[codes]`.

    Columns are checked as a whole, because pandas calls per series are slow.
    """

    def where(row: int) -> str:
        return f"series {_name(ids[codes[row]])!r}, {times[row]}"

    ticks = times.asi8 if isinstance(times, pd.DatetimeIndex) else times.to_numpy()
    order = np.lexsort((ticks, codes))
    values, bad = _to_numbers(frame[columns.target])
    again = np.zeros(len(order), bool)
    again[order[1:]] = (np.diff(codes[order]) == 0) & (np.diff(ticks[order]) == 0)
    if (bad | again).any():
        wrong = codes == codes[bad | again].min()
        check_series(ids[codes[wrong][0]], times[wrong], frame.loc[wrong, columns.target])
    exog = {name: read_values(frame[name], where) for name in (*columns.futr, *columns.hist)}
    static = {name: _constants(frame[name], codes, where) for name in columns.stat}
    whole = TimeSeries(None, times, values, exog=exog).take(order)
    ends = np.cumsum(np.bincount(codes))
    return [
        replace(
            whole.take(slice(end - count, end)),
            unique_id=name,
            static={column: found[number] for column, found in static.items()},
        )
        for number, (name, end, count) in enumerate(
            zip(ids, ends, np.diff(ends, prepend=0), strict=True)
        )
    ]


def _constants(
    column: pd.Series, codes: NDArray[Any], where: Callable[[int], str]
) -> list[float | str | None]:
    """Return the value of a static column for each series."""
    values = pd.Series(read_values(column, where))
    first = values.groupby(codes).transform("first")
    if (wrong := (values.notna() & (values != first)).to_numpy()).any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{where(row)}: {column.name} must be constant in each series (stat_exog_list), got"
            f" {first[row]} and {values[row]}; if it changes, use futr_exog_list or hist_exog_list"
        )
    found = first[np.unique(codes, return_index=True)[1]]
    return [None if pd.isna(value) else value for value in found]


def _is_wide(frame: pd.DataFrame, columns: Columns) -> bool:
    """Return whether a frame has times, but neither ids nor values nor covariates."""
    named = (columns.id, columns.target) != (ID, VALUE) or any(columns.covariates().values())
    return not named and columns.time in frame and not {ID, VALUE} & {*frame.columns}


def _from_wide(frame: pd.DataFrame, columns: Columns) -> list[TimeSeries]:
    """Return one series per column; raise if the frame may be in long format."""
    wide = f"df has no column {VALUE!r}, so that each column must be one series"
    names = frame.columns.drop(columns.time)
    for name in names:
        if str(name).lower() == VALUE:
            raise ValueError(f"{wide}; if {name!r} holds the values, set target_col={name!r}")
        if pd.api.types.infer_dtype(frame[name], skipna=True) not in NUMBERS:
            raise ValueError(
                f"{wide}, but {name!r} does not hold numbers; name the column of values in"
                " target_col, and the column of series in id_col"
            )
    if not len(names) or frame.empty:
        raise ValueError(f"df has no {'rows' if len(names) else 'columns with values'}")
    times = read_times(frame[columns.time])
    _check_one_series(times, frame, columns)
    return [check_series(_column_id(name), times, frame[name]) for name in names]


def _check_same_times(index: Times, column: pd.Series) -> None:
    """Raise if a wide frame has other times in its index than in its time column."""
    if not read_times(index.to_series()).equals(read_times(column)):
        raise ValueError(
            f"df has times in its index and in column {column.name!r}; drop one of them, as by"
            f" df.reset_index(drop=True) or df.drop(columns={column.name!r})"
        )


def _check_one_series(times: Times, frame: pd.DataFrame, columns: Columns) -> None:
    """Raise if times occur twice and a column explains this as several series."""
    if not times.is_unique and (name := id_column(frame.assign(ds=times), columns.names())):
        raise ValueError(
            f"{times[times.duplicated()][0]} occurs twice in {columns.time}; if column {name!r}"
            f" identifies the series, set id_col={name!r}"
        )


def _column_id(name: Any) -> Any:
    return name if isinstance(name, str | int | None) else str(name)


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


def read_values(column: pd.Series, where: Callable[[int], str]) -> RawValues:
    """Return numbers and booleans as float64 with NaN, and categories as text with None.

    `where` describes a row in error messages.
    """
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if kind in NUMBERS:
        values, bad = _to_numbers(column)
        if bad.any():
            row = int(bad.argmax())
            got = str(column.iloc[row])
            raise ValueError(f"{where(row)}: {column.name} must be a finite number, got {got!r}")
        return values
    if kind not in ("string", "categorical"):
        text = [row for row, value in enumerate(column) if isinstance(value, str)]
        got = f"both, with {column.iloc[text[0]]!r} in {where(text[0])}" if text else kind
        raise TypeError(f"column {column.name!r} must hold numbers or categories, got {got}")
    codes, found = pd.factorize(column)
    categories = np.array([*map(category, found), None], dtype=object)
    return categories[codes]  # the code of a missing value is -1


def category(value: Any) -> str | None:
    """Return the name of a category, or None for empty text; 1, 1.0 and True are the same."""
    if isinstance(value, bool | float) and float(value).is_integer():
        value = int(value)
    return str(value) or None


def check_series(unique_id: Any, times: Times | None, column: pd.Series) -> TimeSeries:
    """Return a TimeSeries sorted by time; raise unless values are finite and times unique."""
    name = _name(unique_id)
    if not len(column):
        raise ValueError(f"series {name!r} has no values")
    values, bad = _to_numbers(column)
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
    series = TimeSeries(unique_id, times, values)
    return series if times.is_monotonic_increasing else series.take(times.argsort())


def _to_numbers(column: pd.Series) -> tuple[Values, NDArray[np.bool_]]:
    """Return a column as float64, and where it holds text or numbers that are too large."""
    numbers = pd.to_numeric(column, errors="coerce")
    values = numbers.to_numpy(np.float64, na_value=np.nan, copy=True)
    bad = np.isnan(values) & column.notna().to_numpy() | (np.abs(values) > MAX_VALUE)
    return values, bad


def _name(unique_id: Any) -> Any:
    return DEFAULT_ID if unique_id is None else unique_id


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
    first = int((~np.isnan(series.y)).argmax())
    times = pd.Index(np.arange(len(series))) if series.ds is None else series.ds
    named = replace(series, unique_id=_name(series.unique_id), ds=times)
    return named.take(slice(first, None))


def _common_freq(series: Sequence[TimeSeries]) -> Freq:
    if all(len(s) == 1 for s in series):
        if not isinstance(series[0].ds, pd.DatetimeIndex):
            return 1  # numbers of rows
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
        return fill_series(freq, series)
    except ValueError as error:
        own = infer_own_freq(times) if given else None
        reason = f"the times have the frequency {own!r}, not {freq!r}: " if own else ""
        raise ValueError(f"series {name!r}: {reason}{error}") from None


def infer_own_freq(times: Times) -> Freq | None:
    """Return the frequency of times if it explains most of them, or else None."""
    try:
        own = infer_freq([times]) if len(times) >= MIN_ROWS else None
        return own if own and missing_share(own, [times]) <= 0.5 else None
    except ValueError:
        return None


def fill_series(
    freq: Freq, series: TimeSeries, *, after: Time | None = None, count: int = 0
) -> TimeSeries:
    """Return a row for every step from the first time, or the one after `after`; NaN in gaps.

    `count` is the number of values up to `after`.
    """
    times = series.ds
    assert times is not None
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
    start = int(after is not None)  # position of the first returned row
    length = int(rows[-1]) + 1 - start
    rows = rows[len(anchored) - len(times) :] - start
    ds = times_after(freq, anchored[0], int(rows[-1]) + start)
    return replace(
        series,
        ds=ds if start else times[:1].append(ds),
        y=_spread(series.y, rows, length),
        freq=freq,
        exog={name: _spread(values, rows, length) for name, values in series.exog.items()},
    )


def _spread(values: RawValues, rows: NDArray[np.int64], length: int) -> RawValues:
    """Return an array with the values in these rows, and missing values in the others."""
    full = np.full(length, None if values.dtype == object else np.nan, values.dtype)
    full[rows] = values
    return full
