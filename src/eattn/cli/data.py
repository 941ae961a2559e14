"""`eattn data list | get | show`: find, download and look at datasets."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from eattn.data import Cases, DataSet
    from eattn.data import Table as DataTable

app = typer.Typer(help="Find, download and look at data.\n\nExample: eattn data list")
HEADINGS = {
    "classification": ("channels", "length", "classes", "train", "test"),
    "forecasting": ("rows", "columns", "step", "time", "target"),
}


@app.command("list")
def list_(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Look here first, not in EATTN_DATA."),
    ] = None,
) -> None:
    """Print the shape of each known dataset and where it was found.

    Nothing is downloaded. Example: eattn data list --data-dir ~/data
    """
    from eattn.data import CATALOG, locate

    console = Console(highlight=False)
    rows: dict[str, list[tuple[str, ...]]] = {kind: [] for kind in HEADINGS}
    places, unreadable = {}, []
    for name, known in CATALOG.items():
        found = [locate(name, split, data_dir=data_dir) for split in known.files]
        if not found[0] or not all(found):
            places[name] = f"not on this machine: eattn data get {name}"
            continue
        places[name] = f"{found[0].where}, {found[0].path.parent}"
        try:
            rows[known.kind].append(((*known.aliases, name)[0], *_shape(known, data_dir)))
        except (ValueError, OSError, ModuleNotFoundError) as error:
            places[name] = f"cannot be read: {error}"
            unreadable.append(name)
    for kind, headings in HEADINGS.items():
        console.print(kind.capitalize())
        console.print(_table(("", *headings), rows[kind]) if rows[kind] else "  none found\n")
    _print_lines(console, places)  # not in the tables: paths are long, and copied from here
    if unreadable:
        raise ValueError(f"cannot read {', '.join(unreadable)}")


def _shape(known: "DataSet", data_dir: Path | None) -> tuple[str, ...]:
    """Return the cells of a dataset under its `HEADINGS`, counted in its files."""
    from eattn.data import load_classification, load_forecasting

    if known.kind == "classification":
        train, test = (
            load_classification(known.name, split, data_dir=data_dir, download=False)
            for split in ("train", "test")
        )
        lengths = _range([*train.lengths, *test.lengths])
        classes = {*train.classes, *test.classes}
        return str(train.channels), lengths, str(len(classes)), f"{len(train.X)}", f"{len(test.X)}"
    table = load_forecasting(known.name, data_dir=data_dir, download=False)
    ds = table.frame["ds"]
    times = f"{ds.iloc[0]:%Y-%m-%d} to {ds.iloc[-1]:%Y-%m-%d}"
    return f"{len(ds):,}", str(len(table.columns)), _step(ds), times, str(table.target)


@app.command("get")
def get_(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names in `eattn data list`.")],
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Store them here, not in the cache."),
    ] = None,
) -> None:
    """Download datasets that are not on this machine.

    Example: eattn data get UWaveGestureLibrary ETTh2
    """
    from eattn.data import get, locate, look_up

    wanted = [look_up(name) for name in names]  # a wrong name fails before any download
    for known in wanted:
        found = [data_dir is None and locate(known.name, split) for split in known.files]
        paths = [each.path for each in found if each]
        if len(paths) < len(found):
            paths = get(known.name, folder=data_dir, progress=True)
        for path in paths:
            print(f"{known.name}: {path}")


@app.command("show")
def show_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .ts, CSV or parquet file.")],
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Name of the time column.")
    ] = None,
) -> None:
    """Print what a file contains: shape, classes, missing values, range of times.

    Example: eattn data show sales.csv --time day
    """
    from eattn.data import read_table, read_ts

    if Path(file.name.removesuffix(".gz")).suffix == ".ts":
        if time is not None:
            raise ValueError(f"--time must not be given for {file}: .ts files have no columns")
        lines, table = _describe_samples(read_ts(file))
    else:
        lines, table = _describe_table(read_table(file, time))
    console = Console(highlight=False)
    _print_lines(console, lines)
    if table is not None:
        console.print(table)


def _describe_samples(samples: "Cases") -> tuple[dict[str, str], Table | None]:
    lines = {
        "dataset": samples.name,
        "samples": f"{len(samples.X):,}",
        "channels": str(samples.channels),
        "length": _range(samples.lengths),
        "missing": _share(samples.missing, sum(x.size for x in samples.X)),
    }
    if samples.y is None:
        return lines | {"labels": "none"}, None
    if not samples.classes:
        return lines | {"target": f"{samples.y.min():g} to {samples.y.max():g}"}, None
    counts = Counter(map(str, samples.y))
    table = _table(("class", "samples"), [(name, str(counts[name])) for name in samples.classes])
    return lines | {"classes": str(len(samples.classes))}, table


def _describe_table(table: "DataTable") -> tuple[dict[str, str], Table]:
    from eattn.data.tables import SERIES

    frame = table.frame
    lines = {"table": table.name, "rows": f"{len(frame):,}"}
    if SERIES in frame:
        sizes = frame.groupby(SERIES).size()
        lines["series"] = f"{len(sizes):,} of {_range(sizes)} rows"
    else:
        lines["step"] = _step(frame["ds"])
    lines["time"] = f"{table.time}, {frame['ds'].min()} to {frame['ds'].max()}"
    lines["columns"] = f"{len(table.columns)} of numbers"
    if table.text:
        lines["left out"] = f"text in {', '.join(table.text)}"
    headings = ("column", "missing", "minimum", "mean", "maximum")
    return lines, _table(headings, [_describe_column(frame[name]) for name in table.columns])


def _describe_column(values: "pd.Series[Any]") -> tuple[str, ...]:
    missing = _share(int(values.isna().sum()), len(values))
    if values.isna().all():
        return str(values.name), missing, "", "", ""
    low, mean, high = (f"{x:g}" for x in (values.min(), values.mean(), values.max()))
    return str(values.name), missing, low, mean, f"{high} (constant)" if low == high else high


def _step(ds: "pd.Series[Any]") -> str:
    """Return the most frequent step between rows, and how many steps differ from it."""
    import pandas as pd

    steps = ds.diff().iloc[1:]
    if not len(steps):
        return "one row"
    usual, others = steps.mode().iloc[0], int((steps != steps.mode().iloc[0]).sum())
    every = (
        f"{usual:g}"
        if isinstance(usual, float)
        else pd.tseries.frequencies.to_offset(usual).freqstr
    )
    return f"{every}, {others} of {len(steps):,} steps differ" if others else every


def _range(lengths: Iterable[int]) -> str:
    """Return `7–29`, or `896` if all are equal."""
    low, high = min(lengths), max(lengths)
    return f"{low}" if low == high else f"{low}–{high}"


def _share(missing: int, total: int) -> str:
    return f"{missing:,} of {total:,}" if missing else "none"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


def _print_lines(console: Console, lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    for name, value in lines.items():
        console.print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
