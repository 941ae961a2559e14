"""Tables of time series: increasing times and numeric columns."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn._checks import need_pandas
from eattn.data.catalog import look_up
from eattn.data.files import stem
from eattn.data.locate import Folder, find
from eattn.data.parse_times import parse_times, time_column
from eattn.data.read_csv import Rows, read_rows

if TYPE_CHECKING:
    import pandas as pd

SERIES = "unique_id"  # column that identifies the series, as in Nixtla's libraries


@dataclass(frozen=True, eq=False)
class Table:
    """Table of one or several time series.

    Attributes
    ----------
    frame : DataFrame
        Column `ds` with increasing times or integers, `unique_id` if there are several series, and
        float64 columns with NaN for missing values.
    name : str
        Name of the file or of the dataset.
    time : str
        Name of the time column in the file.
    target : str, optional
        Column to forecast.
    text : tuple of str
        Text columns, which are not in `frame`.
    """

    frame: "pd.DataFrame"
    name: str
    time: str
    target: str | None = None
    text: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Names of the numeric columns."""
        return [name for name in self.frame.columns if name not in ("ds", SERIES)]


def read_table(
    path: str | Path, time: str | None = None, target: str | None = None, series: str | None = None
) -> Table:
    """Read a CSV file, which may be gzipped, or a Parquet file.

    Parameters
    ----------
    path : str or Path
        File to read.
    time : str, optional
        Time column; by default one with a name such as date or ds, or the only one with times.
    target : str, optional
        Keep only this numeric column.
    series : str, optional
        Column that identifies the series; by default `unique_id` if it exists.

    Returns
    -------
    Table

    Raises
    ------
    ValueError
        If the file is invalid; the message names the file, the line and the column.
    """
    rows = read_rows(Path(path))
    names = list(rows.frame.columns)
    for wanted in (time, target, series):
        if wanted is not None and wanted not in names:
            raise ValueError(f"{path} has no column {wanted!r}{_nearest(wanted, names)}")
    if series is None and SERIES in names:
        series = SERIES
    time = time or time_column(rows, without=(target, series))
    if time == target:
        raise ValueError(f"{path}: time and target must be different columns, both are {time!r}")
    columns: dict[str, Any] = {"ds": parse_times(rows, time)}
    if series is not None:
        rows.check_complete(series, "series")
        columns[SERIES] = rows.frame[series].astype(str)
    _check_order(rows, columns["ds"], columns.get(SERIES))
    text = []
    unnamed = [name for name in names if name.startswith("Unnamed: ")]  # index written by pandas
    others = [name for name in names if name not in (time, series, *unnamed)]
    for name in [target] if target else others:
        if name in columns:
            raise ValueError(f"{path}: rename column {name!r}, because {time!r} is renamed to ds")
        numbers = _numbers(rows, name, may_be_text=target is None)
        if numbers is None:
            text.append(name)
        else:
            columns[name] = numbers
    frame = need_pandas().DataFrame(columns)
    table = Table(frame, stem(rows.path), time, target, tuple(text))
    if not table.columns:
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


def _numbers(rows: Rows, column: str, *, may_be_text: bool) -> "pd.Series[Any] | None":
    """Return a column as float64, or None for a text column if `may_be_text`."""
    values = rows.frame[column]
    numbers = need_pandas().to_numeric(values, errors="coerce").astype("float64")
    if may_be_text and numbers.isna().all() and values.notna().any():
        return None
    bad = ((numbers.isna() & values.notna()) | (numbers.abs() == float("inf"))).to_numpy()
    if bad.any():
        rows.fail(column, int(bad.argmax()), "a finite number")
    return numbers


def _check_order(rows: Rows, times: "pd.Series[Any]", series: "pd.Series[Any] | None") -> None:
    """Raise unless the times increase within each series."""
    groups = [times] if series is None else [group for _, group in times.groupby(series)]
    for group in groups:
        wrong = group.to_numpy()[1:] <= group.to_numpy()[:-1]
        if wrong.any():
            number = int(wrong.argmax()) + 1
            time, before = group.iloc[number], group.iloc[:number]
            same = before.index[(before == time).to_numpy()]
            problem = (
                f"{time} already occurs in {rows.where(same[0])}"
                if len(same)
                else f"{time} comes after {before.iloc[-1]}; sort the rows by time"
            )
            raise ValueError(f"{rows.path}, {rows.where(group.index[number])}: {problem}")
