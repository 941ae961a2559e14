"""`eattn data list | get | show`: list, download and describe datasets."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.common import DataDir, DateFormat, Decimal, Encoding, Sep, Thousands

if TYPE_CHECKING:
    import pandas as pd

    from eattn.data import Cases, DataSet, Table

app = typer.Typer(help="List, download and describe datasets.\n\nExample: eattn data list")
HEADINGS = {
    "classification": ("channels", "length", "classes", "train", "test"),
    "forecasting": ("rows", "columns", "step", "time", "target"),
}


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the known datasets with their shapes and folders.

    Nothing is downloaded.

    Example: eattn data list --data-dir ~/data
    """
    from eattn.data import CATALOG, locate

    rows: dict[str, list[tuple[str, ...]]] = {kind: [] for kind in HEADINGS}
    locations, unreadable = {}, []
    for name, known in CATALOG.items():
        found = [locate(name, split, data_dir=data_dir) for split in known.files]
        if not found[0] or not all(found):
            locations[name] = f"not on this machine; download it with: eattn data get {name}"
            continue
        locations[name] = f"{found[0].where}, {found[0].path.parent}"
        try:
            rows[known.kind].append(((*known.aliases, name)[0], *_shape(known, data_dir)))
        except (ValueError, OSError, ModuleNotFoundError) as error:
            locations[name] = f"cannot be read: {error}"
            unreadable.append(name)
    for kind, headings in HEADINGS.items():
        print(kind.capitalize())
        _print_table(("dataset", *headings), rows[kind])
        print()
    _print_lines(locations)  # below the tables, because paths are long
    if unreadable:
        raise ValueError(f"cannot read {', '.join(unreadable)}")


def _shape(known: "DataSet", data_dir: Path | None) -> tuple[str, ...]:
    """Read the files of a dataset and return its cells under `HEADINGS`."""
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
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Names of datasets in `eattn data list`.")
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Folder to store the files in. By default the cache."
        ),
    ] = None,
) -> None:
    """Download datasets that are not on this machine yet.

    Prints the path of each file.

    Example: eattn data get UWaveGestureLibrary ETTh2
    """
    from eattn.data import get, locate, look_up

    wanted = [look_up(name) for name in names]  # raise on an unknown name before any download
    for known in wanted:
        found = [data_dir is None and locate(known.name, split) for split in known.files]
        paths = [each.path for each in found if each]
        if len(paths) < len(found):
            paths = get(known.name, folder=data_dir, progress=True)
        for path in paths:
            print(f"{known.name}: {path}")


@app.command("show")
def show_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=".ts, CSV or Parquet file.")],
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Name of the time column.")
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="Name of the column that identifies series."),
    ] = None,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    date_format: DateFormat = None,
) -> None:
    """Describe a file: shape, classes, missing values and time range.

    Example: eattn data show sales.csv --time day
    """
    from eattn.data import read_table, read_ts

    options: dict[str, Any] = dict(sep=sep, decimal=decimal, thousands=thousands, encoding=encoding)
    options |= dict(time=time, series=id_, date_format=date_format)
    if Path(file.name.removesuffix(".gz")).suffix != ".ts":
        _show_table(read_table(file, **options))
        return
    if given := [name for name, value in options.items() if value is not None]:
        option = {"series": "id", "date_format": "date-format"}.get(given[0], given[0])
        raise ValueError(f"--{option} cannot be used with {file}: .ts files have no columns")
    _show_samples(read_ts(file))


def _show_samples(samples: "Cases") -> None:
    lines = {
        "dataset": samples.name,
        "samples": f"{len(samples.X):,}",
        "channels": str(samples.channels),
        "length": _range(samples.lengths),
        "missing": _share(samples.missing, sum(x.size for x in samples.X)),
    }
    if samples.y is None:
        lines["labels"] = "none"
    elif samples.classes:
        lines["classes"] = str(len(samples.classes))
    else:
        lines["target"] = f"{samples.y.min():g} to {samples.y.max():g}"
    _print_lines(lines)
    if samples.y is not None and samples.classes:
        counts = Counter(map(str, samples.y))
        print()
        _print_table(("class", "samples"), [(name, str(counts[name])) for name in samples.classes])


def _show_table(table: "Table") -> None:
    from eattn.data.tables import SERIES

    frame = table.frame
    lines = {"table": table.name, "rows": f"{len(frame):,}"}
    if SERIES in frame:
        sizes = frame.groupby(SERIES).size()
        lines["series"] = f"{len(sizes):,}, each of {_range(sizes)} rows"
    else:
        lines["step"] = _step(frame["ds"])
    lines["time"] = f"{table.time}, {frame['ds'].min()} to {frame['ds'].max()}"
    lines["columns"] = f"{len(table.columns)} numeric"
    if table.unused:
        lines["ignored"] = f"text columns {', '.join(table.unused)}"
    _print_lines(lines)
    print()
    headings = ("column", "missing", "minimum", "mean", "maximum")
    _print_table(headings, [_describe_column(frame[name]) for name in table.columns])


def _describe_column(values: "pd.Series[Any]") -> tuple[str, ...]:
    missing = _share(int(values.isna().sum()), len(values))
    if values.isna().all():
        return str(values.name), missing, "", "", ""
    low, mean, high = (f"{x:g}" for x in (values.min(), values.mean(), values.max()))
    return str(values.name), missing, low, mean, f"{high} (constant)" if low == high else high


def _step(ds: "pd.Series[Any]") -> str:
    """Return the frequency of the rows, and how many of its steps have no row."""
    import pandas as pd

    from eattn.data.freq import infer_freq, positions

    if len(ds) == 1:
        return "one row"
    times = pd.Index(ds)
    try:
        freq = infer_freq([times])
        steps = int(positions(freq, times)[-1]) + 1
    except ValueError as error:
        return f"uneven: {error}"
    return (
        f"{freq}, {steps - len(ds):,} of {steps:,} steps missing" if steps > len(ds) else str(freq)
    )


def _range(lengths: Iterable[int]) -> str:
    """Return `7–29`, or `896` if all are equal."""
    low, high = min(lengths), max(lengths)
    return f"{low}" if low == high else f"{low}–{high}"


def _share(missing: int, total: int) -> str:
    return f"{missing:,} of {total:,}" if missing else "none"


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns as plain text, which no terminal width truncates."""
    if not rows:
        print("  none found")
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  " + "  ".join(cells).rstrip())


def _print_lines(lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")
