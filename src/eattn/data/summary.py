"""What a file contains, in words."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn.data.table2 import frequency, spread
from eattn.data.tables import SERIES, Table, read_table
from eattn.data.uea import Cases, read_ts

if TYPE_CHECKING:
    import pandas as pd

Lines = dict[str, str]
Rows = list[Sequence[str]]  # the headings first


def summarise(path: Path, *, time: str | None = None) -> tuple[Lines, Rows]:
    """Named facts about a .ts, CSV or parquet file, and a row for each class or column."""
    if Path(path.name.removesuffix(".gz")).suffix == ".ts":
        if time is not None:
            raise ValueError(f"time must not be given for {path}: .ts files have no columns")
        return _cases(read_ts(path))
    return _table(read_table(path, time))


def _cases(cases: Cases) -> tuple[Lines, Rows]:
    values = sum(case.size for case in cases.X)
    lines = {
        "set": cases.name,
        "cases": f"{len(cases.X):,}",
        "channels": str(cases.channels),
        "length": spread(cases.lengths),
        "missing": _share(cases.missing, values),
    }
    if cases.y is None:
        return lines | {"labels": "none"}, []
    if not cases.classes:
        return lines | {"target": f"{cases.y.min():g} to {cases.y.max():g}"}, []
    counts = Counter(map(str, cases.y))
    rows = [(name, str(counts[name])) for name in cases.classes]
    return lines | {"classes": str(len(cases.classes))}, [("class", "cases"), *rows]


def _table(table: Table) -> tuple[Lines, Rows]:
    frame, numbers = table.frame, table.columns
    lines = {"table": table.name, "rows": f"{len(frame):,}"}
    if SERIES in frame:
        groups = frame.groupby(SERIES)["ds"]
        lines["series"] = f"{groups.ngroups:,} of {spread(groups.size())} rows"
    else:
        lines["step"] = frequency(frame["ds"])
    lines["time"] = f"{table.time}, {frame['ds'].min()} to {frame['ds'].max()}"
    lines["columns"] = f"{len(numbers)} of numbers"
    if table.text:
        lines["left out"] = f"text in {', '.join(table.text)}"
    return lines, [
        ("column", "missing", "least", "mean", "greatest"),
        *((name, *_column(frame[name])) for name in numbers),
    ]


def _column(values: "pd.Series[Any]") -> tuple[str, ...]:
    missing = _share(int(values.isna().sum()), len(values))
    if values.isna().all():
        return missing, "", "", ""
    low, mean, high = values.min(), values.mean(), values.max()
    return missing, f"{low:g}", f"{mean:g}", f"{high:g}" + (" (constant)" if low == high else "")


def _share(missing: int, of: int) -> str:
    return f"{missing:,} of {of:,}" if missing else "none"
