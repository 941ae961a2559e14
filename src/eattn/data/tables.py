"""Tables of time series: increasing times and numeric columns."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn._checks import need_pandas
from eattn.data.catalog import look_up
from eattn.data.files import stem
from eattn.data.locate import Folder, find
from eattn.data.parse_numbers import Marks, choose_marks, parse_numbers
from eattn.data.parse_times import is_times, parse_times
from eattn.data.read_csv import Rows, read_rows

if TYPE_CHECKING:
    import pandas as pd

SERIES = "unique_id"  # column that identifies the series, as in Nixtla's libraries
TIMES = ("ds", "date", "datetime", "timestamp", "time")  # common names of the time column


@dataclass(frozen=True, eq=False)
class Table:
    """Table of one or several time series.

    Attributes
    ----------
    frame : DataFrame
        Column `ds` with increasing times or integers, `unique_id` if there are several series, and
        float64 columns with NaN for missing values. Covariates may also be text.
    name : str
        Name of the file or of the dataset.
    time : str
        Name of the time column in the file.
    target : str, optional
        Column to forecast.
    unused : tuple of str
        Columns of the file that are not in `frame`: text, and with a target all others.
    format : dict of str
        The options `sep`, `decimal` and `date_format` that were given or found.
    covariates : tuple of str
        Columns that were asked for as covariates.
    """

    frame: "pd.DataFrame"
    name: str
    time: str
    target: str | None = None
    unused: tuple[str, ...] = ()
    format: Mapping[str, str] = field(default_factory=dict)
    covariates: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Names of the numeric columns that are not covariates."""
        others = ("ds", SERIES, *self.covariates)
        return [name for name in self.frame.columns if name not in others]


def read_table(
    path: str | Path,
    time: str | None = None,
    target: str | None = None,
    series: str | None = None,
    *,
    sep: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    encoding: str | None = None,
    date_format: str | None = None,
    like: Mapping[str, str] | None = None,
    covariates: Sequence[str] = (),
) -> Table:
    """Read a CSV file, which may be gzipped, or a Parquet file.

    Rows may be in any order. Currency and per cent signs are dropped: 5 % is 5. Options that are
    not set are found where the file allows only one reading, and an error asks for them otherwise.

    Parameters
    ----------
    path : str or Path
        File to read.
    time : str, optional
        Time column; by default one with a name such as date or ds, or the only one with times.
    target : str, optional
        Keep only this numeric column, and covariates.
    series : str, optional
        Column that identifies the series; by default `unique_id` if it exists.
    sep : str, optional
        Separator of the columns of a CSV file.
    decimal, thousands : str, optional
        Decimal mark and thousands separator of numbers.
    encoding : str, optional
        Encoding of a CSV file; by default UTF-8, UTF-16 with a byte order mark, or cp1252.
    date_format : str, optional
        Format of dates, such as %d/%m/%Y; times of day may follow. By default, dates with dots
        have the day first, and otherwise the order of day and month gives an even frequency.
    like : mapping, optional
        `Table.format` of an earlier file, which decides if this file allows several readings.
    covariates : sequence of str
        Columns of numbers or text to keep besides.

    Returns
    -------
    Table

    Raises
    ------
    ValueError
        If the file is invalid; the message names the file, the line and the column.
    """
    like = like or {}
    texts = {time, series, SERIES}
    rows = read_rows(
        Path(path),
        sep=sep,
        encoding=encoding,
        is_text=lambda name: name in texts or (time is None and name.lower() in TIMES),
    )
    names = list(rows.frame.columns)
    for wanted in (time, target, series, *covariates):
        if wanted is not None and wanted not in names:
            raise ValueError(f"{path} has no column {wanted!r}{_nearest(wanted, names)}")
    if series is None and SERIES in names:
        series = SERIES
    time = time or _time_column(rows, without=(target, series, *covariates))
    if time == target:
        raise ValueError(f"{path}: time and target must be different columns, both are {time!r}")
    if taken := [name for name in covariates if name in (time, target, series)]:
        raise ValueError(f"{path}: a covariate must be another column, got {taken[0]!r}")
    rows.check_complete(time, "time")
    columns: dict[str, Any] = {}
    if series is not None:
        rows.check_complete(series, "series")
        columns[SERIES] = rows.frame[series].astype(str)
    times, style = parse_times(
        rows.frame[time],
        partial(rows.fail, time),
        date_format=date_format,
        like=like.get("date_format"),
        groups=columns.get(SERIES),
    )
    columns = {"ds": times} | columns
    _check_unique(rows, columns, skip=(time, target, series))
    unnamed = [name for name in names if name.startswith("Unnamed: ")]  # index written by pandas
    others = [name for name in names if name not in (time, series, *unnamed)]
    rows, marks = _with_marks(rows, others, decimal, thousands, like.get("decimal"))
    for name in [target, *covariates] if target else others:
        if name in columns:
            renamed = time if name == "ds" else series
            raise ValueError(f"{path}: rename column {name!r}, because {renamed!r} gets this name")
        numbers = _numbers(rows, name, marks, may_be_text=name != target)
        if numbers is not None or name in covariates:
            columns[name] = rows.frame[name] if numbers is None else numbers
    frame = _sorted(need_pandas().DataFrame(columns))
    found = {"sep": rows.sep, "decimal": marks.decimal, "date_format": style}
    table = Table(
        frame,
        stem(rows.path),
        time,
        target,
        tuple(name for name in others if name not in columns),
        {name: value for name, value in found.items() if value is not None},
        tuple(covariates),
    )
    if not table.columns and not covariates:
        raise ValueError(f"{path} has no numeric column besides {time!r}")
    return table


def load_forecasting(
    name: str,
    *,
    data_dir: Folder | None = None,
    download: bool = True,
    progress: bool = False,
) -> Table:
    """Load a known forecasting dataset.

    Parameters
    ----------
    name : str
        Name of the dataset, such as ETTh2.
    data_dir : path, optional
        Folder to look in first, instead of EATTN_DATA.
    download : bool, default True
        Download a dataset that is not on this machine.
    progress : bool, default False
        Show the progress of a download on stderr.

    Returns
    -------
    Table
    """
    known = look_up(name)
    path = find(name, data_dir=data_dir, download=download, progress=progress)
    table = read_table(path, time="date")
    if known.target not in table.columns:
        raise ValueError(f"{path} must have a numeric column {known.target!r}")
    return replace(table, name=known.name, target=known.target)


def _nearest(name: str, names: Sequence[str]) -> str:
    lower = {each.lower(): each for each in names if each}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    if near:
        return f": did you mean {lower[near[0]]!r}?"
    return f"; it has {', '.join(names[:12])}" + (", …" if len(names) > 12 else "")


def _time_column(rows: Rows, *, without: Collection[str | None]) -> str:
    """Return the column with a common name for times, or else the only one with times."""
    frame, path = rows.frame, rows.path
    names = [name for name in frame.columns if name not in without]
    usual = [name for name in names if name.lower() in TIMES]
    if len(usual) == 1:
        return usual[0]
    parsing = [name for name in usual or names if is_times(frame[name].head(1000))]
    if len(parsing) == 1:
        return parsing[0]
    if parsing:
        raise ValueError(
            f"{path} has several time columns: {', '.join(parsing)}; choose one with time (--time)"
        )
    raise ValueError(
        f"{path} has no obvious time column; choose one of {', '.join(names)} with time (--time)"
    )


def _with_marks(
    rows: Rows,
    names: Sequence[str],
    decimal: str | None,
    thousands: str | None,
    like: str | None,
) -> tuple[Rows, Marks]:
    """Return the marks of numbers, and the rows as text if pandas misread them."""
    frame = rows.frame
    if rows.text is not None and rows.sep != "," and decimal is thousands is None:
        # With a decimal comma, 1.234 means 1234, but pandas reads it as a decimal number.
        frame = rows.text()
    is_text = need_pandas().api.types.is_object_dtype
    text = [frame[name] for name in names if is_text(frame[name])]
    try:
        marks = choose_marks(text, decimal, thousands, like)
    except ValueError as error:
        raise ValueError(f"{rows.path}: {error}") from None
    if rows.text is not None and (marks.decimal != "." or marks.thousands == "."):
        rows = replace(rows, frame=rows.text())
    return rows, marks


def _numbers(
    rows: Rows, column: str, marks: Marks, *, may_be_text: bool
) -> "pd.Series[Any] | None":
    """Return a column as float64, or None for a text column if `may_be_text`."""
    values = rows.frame[column]
    numbers = parse_numbers(values, marks)
    if may_be_text and 2 * numbers.count() < values.count():
        return None
    bad = ((numbers.isna() & values.notna()) | (numbers.abs() == float("inf"))).to_numpy()
    if bad.any():
        rows.fail(column, int(bad.argmax()), "must be a finite number")
    return numbers


def _check_unique(rows: Rows, columns: Mapping[str, Any], skip: Collection[str | None]) -> None:
    """Raise if a time occurs twice in a series; suggest a column that tells the series apart."""
    keys = need_pandas().DataFrame(columns)
    again = keys.duplicated().to_numpy()
    if not again.any():
        return
    row, count = int(again.argmax()), int(again.sum())
    first = int((keys == keys.iloc[row]).all(axis=1).to_numpy().argmax())
    problem = f"{columns['ds'].iloc[row]} already occurs in {rows.where(first)}"
    if SERIES in columns:
        problem += f" for series {columns[SERIES].iloc[row]!r}"
    if count > 1:
        problem += f" ({count} rows repeat the time of an earlier row)"
    if SERIES not in columns and (name := id_column(rows.frame.assign(ds=keys["ds"]), skip)):
        problem += f"; if column {name!r} identifies the series, set series (--id {name})"
    raise ValueError(f"{rows.path}, {rows.where(row)}: {problem}")


def id_column(frame: "pd.DataFrame", skip: Collection[str | None]) -> str | None:
    """Return the first column, text before integers, within whose values `ds` is unique."""
    types = need_pandas().api.types
    names = [name for name in frame if name != "ds" and name not in skip]
    text = [name for name in names if not types.is_numeric_dtype(frame[name])]
    whole = [name for name in names if types.is_integer_dtype(frame[name])]
    for name in (*text, *whole):
        # A column with a new value in almost every row says nothing about the series.
        repeated = 2 * frame[name].nunique() <= len(frame)
        if repeated and not frame.duplicated([name, "ds"]).any():
            return str(name)
    return None


def _sorted(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Sort the rows of each series by time, unless they are sorted already."""
    order = need_pandas().factorize(frame[SERIES])[0] if SERIES in frame else [0] * len(frame)
    if all(part.is_monotonic_increasing for _, part in frame["ds"].groupby(order)):
        return frame
    ordered = frame.assign(order=order).sort_values(["order", "ds"], ignore_index=True)
    return ordered.drop(columns="order")
