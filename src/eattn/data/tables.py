"""Any CSV or parquet file with a time column: times that rise, and columns of numbers."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn.data.files import stem
from eattn.data.parse_times import parse_times, time_column
from eattn.data.read_csv import Place, check_given, need_pandas, read_rows

if TYPE_CHECKING:
    import pandas as pd

SERIES = "unique_id"  # the usual name of the column that tells several series apart


@dataclass(frozen=True, eq=False)
class Table:
    """`frame` has `ds`, times or whole numbers, and columns of numbers, NaN where missing.

    `unique_id` comes second if the file holds several series; times rise within each. `time` is
    what the file calls ds. Columns of text are left out and named in `text`.
    """

    frame: "pd.DataFrame"
    name: str
    time: str
    target: str | None = None
    text: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns of numbers."""
        return [name for name in self.frame.columns if name not in ("ds", SERIES)]


def read_table(
    path: str | Path, time: str | None = None, target: str | None = None, series: str | None = None
) -> Table:
    """The table of a CSV (.gz too) or parquet file; what is wrong is named with line and column.

    `time` is found when one column alone holds times, or has a name such as date or ds. With a
    `target` only that column is kept. `series` tells several series in one file apart, and is
    `unique_id` if there is such a column; times must rise within each.
    """
    path = Path(path)
    pandas = need_pandas()
    raw, place = read_rows(path)
    names = list(raw.columns)
    for wanted in (time, target, series):
        if wanted is not None and wanted not in names:
            raise ValueError(f"{path} has no column {wanted!r}{_nearest(wanted, names)}")
    if series is None and SERIES in names:
        series = SERIES
    time = time or time_column(raw, path, without=(target, series))
    if time == target:
        raise ValueError(f"{path}: time and target must be two columns, both are {time!r}")
    columns: dict[str, Any] = {"ds": parse_times(raw[time], path, place)}
    if series is not None:
        check_given("series", raw[series], path, place)
        columns[SERIES] = raw[series].astype(str)
    _check_order(columns["ds"], columns.get(SERIES), path, place)
    text = []
    for name in [target] if target else _others(names, time, series):
        if name in columns:
            raise ValueError(f"{path}: rename column {name!r}, {time!r} will be called ds here")
        numbers = _numbers(raw[name], path, place, always=target is not None)
        if numbers is None:
            text.append(name)
        else:
            columns[name] = numbers
    table = Table(pandas.DataFrame(columns), stem(path), time, target, tuple(text))
    if not table.columns:
        raise ValueError(f"{path} has no column of numbers beside {time!r}")
    return table


def _others(names: Sequence[str], *without: str | None) -> list[str]:
    """Less those without a name, such as an index that pandas wrote out."""
    return [name for name in names if name not in without and not name.startswith("Unnamed: ")]


def _nearest(name: str, names: Sequence[str]) -> str:
    lower = {each.lower(): each for each in names if each}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    if near:
        return f": did you mean {lower[near[0]]!r}?"
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f", it has {shown}"


def _numbers(
    values: "pd.Series[Any]", path: Path, place: Place, *, always: bool
) -> "pd.Series[Any] | None":
    """The column as float64; None when it is text throughout and need not `always` be numbers."""
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce").astype("float64")
    bad = numbers.isna() & values.notna()
    if not bad.any() and not (infinite := numbers.abs() == float("inf")).any():
        return numbers
    if not always and bad.any() and numbers.isna().all():
        return None
    row = int((bad if bad.any() else infinite).to_numpy().argmax())
    raise ValueError(
        f"{path}, {place(row)}, column {values.name!r} must be a finite number, "
        f"got {str(values.iloc[row])!r}"
    )


def _check_order(
    times: "pd.Series[Any]", series: "pd.Series[Any] | None", path: Path, place: Place
) -> None:
    """Times must rise, within each series."""
    groups = [times] if series is None else [group for _, group in times.groupby(series)]
    for group in groups:
        ticks = group.to_numpy()
        wrong = ticks[1:] <= ticks[:-1]
        if wrong.any():
            number = int(wrong.argmax()) + 1
            row, time = group.index[number], group.iloc[number]
            same = group.index[:number][(group.iloc[:number] == time).to_numpy()]
            if len(same):
                raise ValueError(
                    f"{path}, {place(row)}: {time} is there already, in {place(same[0])}"
                )
            raise ValueError(
                f"{path}, {place(row)}: {time} comes after {group.iloc[number - 1]}; "
                "sort the rows by time"
            )
